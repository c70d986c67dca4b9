//! The table at the end of a run.

use bedplate_results::{InstanceRow, TrialRow, trust_name};
use comfy_table::{CellAlignment, Table, presets};

/// The trials as a table, then the parts of those with several instances, and each reason for a caveat
/// or a void trial in words.
pub(crate) fn trials(rows: &[TrialRow], instances: &[InstanceRow]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "trial",
        "cell",
        "server",
        "clients",
        "tps",
        "p50 ms",
        "p99 ms",
        "committed",
        "failed",
        "trust",
    ]);
    for row in rows {
        table.add_row([
            row.trial.to_string(),
            row.cell.clone(),
            server(row),
            clients(row),
            figure(row.tps, 0),
            figure(row.service_time_ms.p50, 2),
            figure(row.service_time_ms.p99, 2),
            row.committed.to_string(),
            row.failed.to_string(),
            trust_name(row.trust).to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(3).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = table.to_string();
    for row in rows.iter().filter(|row| row.instances > 1) {
        let of_trial = instances.iter().filter(|instance| instance.trial == row.trial);
        let parts: Vec<String> = of_trial.map(|instance| figure(instance.tps, 0)).collect();
        text.push_str(&format!(
            "\ntrial {} ({}): tps of its instances: {}",
            row.trial,
            row.cell,
            parts.join(", ")
        ));
    }
    for row in rows {
        for reason in &row.trust_reasons {
            text.push_str(&format!(
                "\ntrial {} ({}): {}: {reason}",
                row.trial,
                row.cell,
                trust_name(row.trust)
            ));
        }
    }
    text
}

/// Clients, of each instance where there are several: `4 × 8`.
fn clients(row: &TrialRow) -> String {
    match row.instances {
        1 => row.clients.to_string(),
        instances => format!("{instances} × {}", row.clients),
    }
}

/// Kind and version of what ran, or what was asked for where nothing did.
fn server(row: &TrialRow) -> String {
    match &row.engine_version {
        Some(version) => format!("{} {version}", row.engine_kind.name()),
        None => format!("{} {}?", row.engine_kind.name(), row.version_asked),
    }
}

/// A number, or a dash where there is none.
fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}
