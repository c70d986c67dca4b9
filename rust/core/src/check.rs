//! Whether the server that runs is the one that was declared. Nothing is assumed: what is compared
//! here was read back from the live server.

use crate::error::{Error, Result};
use crate::plan::{EngineKind, EnginePlan};
use crate::record::ServerFacts;

/// The settings that decide whether a commit is on stable storage, each with its safe value as the live
/// server shows it. They are in every plan, whatever the server's own configuration says, and are
/// compared in every trial.
pub fn durability(kind: EngineKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        EngineKind::Postgres => {
            &[("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "on")]
        }
        EngineKind::MariaDb => {
            &[("innodb_doublewrite", "ON"), ("innodb_flush_log_at_trx_commit", "1")]
        }
    }
}

/// Checks that the server's version is the one asked for, in whole components: `13` is served by
/// 13.23, and neither by 130 nor by 15.
///
/// # Errors
/// When another version runs and `allow_other_version` is not set.
pub fn check_version(engine: &EnginePlan, live: &ServerFacts) -> Result<()> {
    if engine.allow_other_version || engine.is_version(&live.version) {
        return Ok(());
    }
    Err(Error::provision(format!(
        "`engine.version` is {}, but the server that runs is {}",
        engine.version, live.version
    ))
    .hint(
        "give that version, or set `allow_other_version = true`; every table then names what ran",
    ))
}

/// Checks the sizes that are compiled into the server.
///
/// # Errors
/// When they are not those that were asked for.
pub fn check_pages(engine: &EnginePlan, live: &ServerFacts) -> Result<()> {
    let Some(pages) = engine.pages else { return Ok(()) };
    for (name, asked) in
        [("block_size", pages.block_size_bytes), ("wal_block_size", pages.wal_block_size_bytes)]
    {
        let found = live.settings.get(name).map_or("nothing", String::as_str);
        if found != asked.to_string() {
            return Err(Error::provision(format!(
                "`engine.{name}` is {asked} bytes, but the live server has {found}"
            ))
            .hint("leave `image` and `bin_dir` out to have an image with that size"));
        }
    }
    Ok(())
}

/// The bytes of a page that the live server writes at once; absent where it does not tell.
pub fn page_bytes(kind: EngineKind, live: &ServerFacts) -> Option<u64> {
    let name = match kind {
        EngineKind::Postgres => "block_size",
        EngineKind::MariaDb => "innodb_page_size",
    };
    live.settings.get(name)?.parse().ok()
}

/// The settings that guard against pages written by half.
pub fn guards_pages(name: &str) -> bool {
    matches!(name, "full_page_writes" | "innodb_doublewrite")
}

/// Checks every declared setting against the live server.
///
/// # Errors
/// The settings that differ or that the server does not know; a durability setting comes first.
pub fn check_settings(engine: &EnginePlan, live: &ServerFacts) -> Result<()> {
    let mut differing: Vec<(bool, String)> = Vec::new();
    for (key, declared) in &engine.settings {
        let name = live_name(engine.kind, key);
        let durability = durability(engine.kind).iter().any(|(known, _)| *known == name);
        let actual = live.settings.get(&name).or_else(|| {
            live.settings.iter().find(|(n, _)| n.eq_ignore_ascii_case(&name)).map(|(_, v)| v)
        });
        match actual {
            Some(actual) if same_value(engine.kind, &name, declared, actual) => {}
            Some(actual) => differing.push((
                !durability,
                format!("`engine.settings.{key}` is declared as `{declared}`, but the live server has `{actual}`"),
            )),
            None => differing.push((
                !durability,
                format!("`engine.settings.{key}` is declared as `{declared}`, but the live server has no such setting"),
            )),
        }
    }
    differing.sort();
    let mut messages = differing.into_iter().map(|(_, message)| message);
    let Some(first) = messages.next() else { return Ok(()) };
    let error = Error::provision(first)
        .hint("declare what the server really has, or look for what overrides it there");
    let rest: Vec<String> = messages.collect();
    Err(if rest.is_empty() { error } else { error.evidence(rest.join("\n")) })
}

/// A setting's name as the live server shows it; MariaDB takes dashes for underscores.
fn live_name(kind: EngineKind, name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match kind {
        EngineKind::Postgres => name,
        EngineKind::MariaDb => name.replace('-', "_"),
    }
}

/// Whether two spellings of a setting's value mean the same: `1024MB` and `1GB`, `true` and `on`.
/// `name` is spelt as the live server spells it.
pub fn same_value(kind: EngineKind, name: &str, declared: &str, live: &str) -> bool {
    let (declared, live) = (declared.trim(), live.trim());
    if declared.eq_ignore_ascii_case(live) {
        return true;
    }
    match kind {
        EngineKind::Postgres => same_in_postgres(name, declared, live),
        EngineKind::MariaDb => same_in_mariadb(name, declared, live),
    }
}

/// MariaDB shows sizes in bytes, switches as `ON` and `OFF`, and lists in an order of its own.
fn same_in_mariadb(name: &str, declared: &str, live: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        let parts = text.split(',').map(|part| part.trim().to_ascii_lowercase());
        parts.filter(|part| !part.is_empty()).collect()
    };
    match name {
        // Given the name of a file, shown as a switch.
        "log_bin" if boolean(declared).is_none() => return live.eq_ignore_ascii_case("on"),
        // Flags that are not named keep their defaults.
        "optimizer_switch" => {
            let live = parts(live);
            return parts(declared).iter().all(|flag| live.contains(flag));
        }
        "sql_mode" => {
            let (mut declared, mut live) = (parts(declared), parts(live));
            declared.sort();
            live.sort();
            return declared == live;
        }
        _ => {}
    }
    if live.eq_ignore_ascii_case("on") || live.eq_ignore_ascii_case("off") {
        return boolean(declared) == Some(live.eq_ignore_ascii_case("on"));
    }
    matches!(
        (mariadb_number(declared), mariadb_number(live)),
        (Some(declared), Some(live)) if declared == live
    )
}

/// A number with one of MariaDB's suffixes, which are powers of 1024 in either letter case.
fn mariadb_number(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match text[number.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * 1024_f64.powi(power))
}

fn same_in_postgres(name: &str, declared: &str, live: &str) -> bool {
    // -1 asks the server to choose, and it then shows what it chose.
    if name == "wal_buffers" && declared == "-1" {
        return true;
    }
    if let "on" | "off" = live {
        return boolean(declared) == Some(live == "on");
    }
    let unit = base_unit(name);
    match (quantity(declared, unit), quantity(live, unit)) {
        (Some(declared), Some(live)) => {
            // The server keeps whole multiples of the base unit.
            let step = unit.and_then(unit_size).map_or(0.0, |(_, size)| size);
            declared.0 == live.0
                && (declared.1 == live.1
                    || (step > 0.0 && (declared.1 / step).round() == (live.1 / step).round()))
        }
        _ => false,
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" | "t" | "y" => Some(true),
        "off" | "false" | "no" | "0" | "f" | "n" => Some(false),
        _ => None,
    }
}

/// Dimensions of quantities.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Dimension {
    Plain,
    Bytes,
    Microseconds,
}

/// The number that a text means, in bytes, microseconds or nothing. A bare number is in the
/// setting's base unit.
fn quantity(text: &str, base: Option<&str>) -> Option<(Dimension, f64)> {
    let split = text
        .find(|character: char| !matches!(character, '0'..='9' | '.' | '-' | '+'))
        .unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    match (text[split..].trim(), base) {
        ("", None) => Some((Dimension::Plain, number)),
        ("", Some(base)) => unit_size(base).map(|(dimension, size)| (dimension, number * size)),
        (unit, _) => unit_size(unit).map(|(dimension, size)| (dimension, number * size)),
    }
}

fn unit_size(unit: &str) -> Option<(Dimension, f64)> {
    const KIB: f64 = 1024.0;
    Some(match unit {
        "B" => (Dimension::Bytes, 1.0),
        "kB" => (Dimension::Bytes, KIB),
        "8kB" => (Dimension::Bytes, 8.0 * KIB),
        "MB" => (Dimension::Bytes, KIB * KIB),
        "GB" => (Dimension::Bytes, KIB * KIB * KIB),
        "TB" => (Dimension::Bytes, KIB * KIB * KIB * KIB),
        "us" => (Dimension::Microseconds, 1.0),
        "ms" => (Dimension::Microseconds, 1e3),
        "s" => (Dimension::Microseconds, 1e6),
        "min" => (Dimension::Microseconds, 60e6),
        "h" => (Dimension::Microseconds, 3600e6),
        "d" => (Dimension::Microseconds, 86_400e6),
        _ => return None,
    })
}

/// The unit of a bare number, as `pg_settings.unit` has it in PostgreSQL 13 to 15.
fn base_unit(name: &str) -> Option<&'static str> {
    Some(match name {
        "backend_flush_after"
        | "bgwriter_flush_after"
        | "checkpoint_flush_after"
        | "effective_cache_size"
        | "min_parallel_index_scan_size"
        | "min_parallel_table_scan_size"
        | "shared_buffers"
        | "temp_buffers"
        | "wal_buffers"
        | "wal_writer_flush_after" => "8kB",
        "autovacuum_work_mem"
        | "gin_pending_list_limit"
        | "huge_page_size"
        | "log_rotation_size"
        | "log_temp_files"
        | "logical_decoding_work_mem"
        | "maintenance_work_mem"
        | "max_stack_depth"
        | "temp_file_limit"
        | "wal_skip_threshold"
        | "work_mem" => "kB",
        "max_slot_wal_keep_size"
        | "max_wal_size"
        | "min_dynamic_shared_memory"
        | "min_wal_size"
        | "wal_keep_size" => "MB",
        "log_parameter_max_length"
        | "log_parameter_max_length_on_error"
        | "track_activity_query_size"
        | "wal_decode_buffer_size" => "B",
        "autovacuum_vacuum_cost_delay"
        | "bgwriter_delay"
        | "client_connection_check_interval"
        | "deadlock_timeout"
        | "idle_in_transaction_session_timeout"
        | "idle_session_timeout"
        | "lock_timeout"
        | "log_autovacuum_min_duration"
        | "log_min_duration_sample"
        | "log_min_duration_statement"
        | "log_startup_progress_interval"
        | "max_standby_archive_delay"
        | "max_standby_streaming_delay"
        | "recovery_min_apply_delay"
        | "statement_timeout"
        | "tcp_user_timeout"
        | "vacuum_cost_delay"
        | "wal_receiver_timeout"
        | "wal_retrieve_retry_interval"
        | "wal_sender_timeout"
        | "wal_writer_delay" => "ms",
        "archive_timeout"
        | "authentication_timeout"
        | "autovacuum_naptime"
        | "checkpoint_timeout"
        | "checkpoint_warning"
        | "post_auth_delay"
        | "pre_auth_delay"
        | "tcp_keepalives_idle"
        | "tcp_keepalives_interval"
        | "wal_receiver_status_interval" => "s",
        "log_rotation_age" | "old_snapshot_threshold" => "min",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::version_has_prefix;
    use crate::plan::{Pages, Provision, SettingsProfile, TlsMode, TransportKind};

    fn engine(version: &str, settings: &[(&str, &str)]) -> EnginePlan {
        engine_of(EngineKind::Postgres, version, settings)
    }

    fn engine_of(kind: EngineKind, version: &str, settings: &[(&str, &str)]) -> EnginePlan {
        EnginePlan {
            label: "x".into(),
            kind,
            version: version.into(),
            allow_other_version: false,
            provision: Provision::Url { url: String::new() },
            transport: TransportKind::Unix,
            settings: map(settings),
            tls: TlsMode::Off,
            settings_profile: SettingsProfile::Stock,
            pages: None,
            tls_ca: None,
            initdb: None,
        }
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn live(version: &str, settings: &[(&str, &str)]) -> ServerFacts {
        ServerFacts { version: version.into(), settings: map(settings), ..ServerFacts::default() }
    }

    #[test]
    fn a_version_is_compared_in_whole_components() {
        for (asked, runs, same) in [
            ("13", "13.23", true),
            ("13.23", "13.23", true),
            ("13", "13.23 (Debian 13.23-0+deb11u4)", true),
            ("13", "130.1", false),
            ("13.2", "13.23", false),
            ("13", "15.20", false),
            ("13.23.1", "13.23", false),
            ("13", "", false),
        ] {
            assert_eq!(version_has_prefix(runs, asked), same, "{asked} {runs}");
        }
    }

    #[test]
    fn another_version_needs_permission() {
        let mut engine = engine("13", &[]);
        let error = check_version(&engine, &live("15.20", &[])).unwrap_err();
        assert_eq!(error.message, "`engine.version` is 13, but the server that runs is 15.20");
        assert!(error.hint.unwrap().contains("allow_other_version"));
        engine.allow_other_version = true;
        assert_eq!(check_version(&engine, &live("15.20", &[])), Ok(()));
    }

    #[test]
    fn spellings_of_one_value_are_equal() {
        for (name, declared, shown) in [
            ("fsync", "true", "on"),
            ("fsync", "0", "off"),
            ("synchronous_commit", "ON", "on"),
            ("shared_buffers", "1024MB", "1GB"),
            ("shared_buffers", "16384", "128MB"),
            ("shared_buffers", "1GB", "1GB"),
            ("shared_buffers", "0.5 GB", "512MB"),
            ("work_mem", "4096", "4MB"),
            ("max_wal_size", "1024", "1GB"),
            ("checkpoint_timeout", "300", "5min"),
            ("checkpoint_timeout", "300s", "5min"),
            ("checkpoint_timeout", "1h", "1h"),
            ("wal_writer_delay", "200", "200ms"),
            ("statement_timeout", "0", "0"),
            ("random_page_cost", "4.0", "4"),
            ("max_connections", "300", "300"),
            ("wal_buffers", "-1", "16MB"),
            ("autovacuum_work_mem", "-1", "-1"),
            ("shared_buffers", "100kB", "104kB"),
            ("wal_sync_method", "fdatasync", "fdatasync"),
            ("some_text", "", ""),
        ] {
            let same = same_value(EngineKind::Postgres, name, declared, shown);
            assert!(same, "{name} {declared} {shown}");
        }
    }

    #[test]
    fn different_values_differ() {
        for (name, declared, shown) in [
            ("fsync", "on", "off"),
            ("synchronous_commit", "remote_write", "on"),
            ("shared_buffers", "1GB", "128MB"),
            ("shared_buffers", "128", "128kB"),
            ("checkpoint_timeout", "5", "5min"),
            ("max_connections", "100", "101"),
            ("wal_sync_method", "fsync", "fdatasync"),
            ("checkpoint_timeout", "5MB", "5s"),
            ("work_mem", "lots", "4MB"),
        ] {
            let same = same_value(EngineKind::Postgres, name, declared, shown);
            assert!(!same, "{name} {declared} {shown}");
        }
    }

    #[test]
    fn mariadb_has_spellings_of_its_own() {
        for (name, declared, shown, expected) in [
            ("innodb_buffer_pool_size", "1G", "1073741824", true),
            ("innodb_buffer_pool_size", "256m", "268435456", true),
            ("innodb_buffer_pool_size", "128K", "131072", true),
            ("innodb_buffer_pool_size", "1G", "1000000000", false),
            ("innodb_buffer_pool_size", "1GB", "1073741824", false),
            ("innodb_buffer_pool_size", "1.5G", "1610612736", true),
            ("innodb_doublewrite", "1", "ON", true),
            ("innodb_doublewrite", "true", "ON", true),
            ("innodb_doublewrite", "off", "ON", false),
            ("innodb_doublewrite", "0", "OFF", true),
            ("innodb_flush_log_at_trx_commit", "1", "1", true),
            ("innodb_flush_log_at_trx_commit", "2", "1", false),
            ("innodb_flush_method", "o_direct", "O_DIRECT", true),
            ("innodb_flush_method", "fsync", "O_DIRECT", false),
            ("long_query_time", "2", "2.000000", true),
            ("log_bin", "binlog", "ON", true),
            ("log_bin", "binlog", "OFF", false),
            ("log_bin", "0", "OFF", true),
            ("sql_mode", "ansi_quotes, STRICT_ALL_TABLES", "STRICT_ALL_TABLES,ANSI_QUOTES", true),
            ("sql_mode", "ANSI_QUOTES", "STRICT_ALL_TABLES,ANSI_QUOTES", false),
            ("sql_mode", "", "", true),
            ("optimizer_switch", "mrr=on", "index_merge=on,mrr=on", true),
            ("optimizer_switch", "mrr=off", "index_merge=on,mrr=on", false),
            ("tmpdir", "é", "/tmp", false),
        ] {
            let same = same_value(EngineKind::MariaDb, name, declared, shown);
            assert_eq!(same, expected, "{name} {declared} {shown}");
        }
        let settings = [("innodb-doublewrite", "1"), ("Max_Connections", "200")];
        let engine = engine_of(EngineKind::MariaDb, "10.3", &settings);
        let with = |flush: &str| {
            live("10.3.39", &[("innodb_doublewrite", flush), ("max_connections", "200")])
        };
        assert_eq!(check_settings(&engine, &with("ON")), Ok(()));
        let error = check_settings(&engine, &with("OFF")).unwrap_err();
        assert_eq!(
            error.message,
            "`engine.settings.innodb-doublewrite` is declared as `1`, but the live server has `OFF`"
        );
    }

    #[test]
    fn page_sizes_are_those_of_the_live_server() {
        let mut engine = engine("13", &[]);
        let live = live("13.23", &[("block_size", "4096"), ("wal_block_size", "8192")]);
        assert_eq!(check_pages(&engine, &live), Ok(()));
        engine.pages = Some(Pages { block_size_bytes: 4096, wal_block_size_bytes: 8192 });
        assert_eq!(check_pages(&engine, &live), Ok(()));
        engine.pages = Some(Pages { block_size_bytes: 1024, wal_block_size_bytes: 8192 });
        let error = check_pages(&engine, &live).unwrap_err();
        assert_eq!(
            error.message,
            "`engine.block_size` is 1024 bytes, but the live server has 4096"
        );
    }

    #[test]
    fn a_differing_durability_setting_comes_first() {
        let engine = engine("13", &[("autovacuum", "off"), ("fsync", "on"), ("no_such", "1")]);
        let live = live("13.23", &[("autovacuum", "on"), ("fsync", "off")]);
        let error = check_settings(&engine, &live).unwrap_err();
        assert_eq!(
            error.message,
            "`engine.settings.fsync` is declared as `on`, but the live server has `off`"
        );
        assert_eq!(
            error.evidence.unwrap(),
            "`engine.settings.autovacuum` is declared as `off`, but the live server has `on`\n\
             `engine.settings.no_such` is declared as `1`, but the live server has no such setting"
        );
    }

    #[test]
    fn equal_settings_pass() {
        let engine = engine("13", &[("FSYNC", "yes"), ("DateStyle", "ISO, MDY")]);
        let live = live("13.23", &[("DateStyle", "ISO, MDY"), ("fsync", "on")]);
        assert_eq!(check_settings(&engine, &live), Ok(()));
    }
}
