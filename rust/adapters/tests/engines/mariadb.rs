//! MariaDB: Debian's own as a process, and the image that is built here.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use bedplate_adapters::drivers::mariadb_session;
use bedplate_adapters::drivers::tls::ClientTls;
use bedplate_adapters::engines;
use bedplate_adapters::images::Image;
use bedplate_core::check::{check_settings, check_version, durability};
use bedplate_core::error::ErrorKind;
use bedplate_core::plan::{
    EngineKind, EnginePlan, Provision, SettingsProfile, TlsMode, TransportKind,
};
use bedplate_core::seam::{Address, Endpoint, Server};

use super::{Trial, built, installed, output, plan, preflight_error, value};

fn engine(provision: Provision, transport: TransportKind, settings: &[(&str, &str)]) -> EnginePlan {
    let all = durability(EngineKind::MariaDb).iter().chain(settings);
    EnginePlan {
        label: "mariadb".into(),
        kind: EngineKind::MariaDb,
        version: "10.3".into(),
        allow_other_version: true,
        provision,
        transport,
        settings: all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        settings_profile: SettingsProfile::Stock,
        pages: None,
        tls: TlsMode::Off,
        tls_ca: None,
        initdb: None,
    }
}

async fn process() -> Provision {
    installed(EngineKind::MariaDb).await
}

async fn container() -> Provision {
    built(Image::MariaDb105).await
}

/// Debian's client.
fn client(endpoint: &Endpoint, sql: &str) -> String {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--batch", "--skip-column-names", "--user", &endpoint.user]);
    match &endpoint.address {
        Address::Unix(path) => command.arg(format!("--socket={}", path.display())),
        Address::Tcp(host, port) => {
            command.args(["--protocol=tcp", "--host", host, "--port", &port.to_string()])
        }
    };
    let output = command.args(["-e", sql]).env("MYSQL_PWD", &endpoint.password).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What the server says of itself is what Debian's client is told.
async fn facts_agree_with_the_client(server: &dyn Server, engine: &EnginePlan) {
    let facts = server.facts().await.unwrap();
    let endpoint = server.endpoint();
    assert_eq!(facts.version_full, client(endpoint, "SELECT VERSION()"));
    assert!(facts.version_full.starts_with(&format!("{}-MariaDB", facts.version)));
    let told: BTreeMap<String, String> = client(endpoint, "SHOW GLOBAL VARIABLES")
        .lines()
        .map(|line| line.split_once('\t').unwrap_or((line, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(facts.settings.len(), told.len());
    for name in ["datadir", "innodb_doublewrite", "innodb_buffer_pool_size", "max_connections"] {
        assert_eq!(facts.settings[name], told[name], "{name}");
    }
    assert_eq!(facts.settings["innodb_doublewrite"], "ON");
    assert_eq!(facts.settings["innodb_flush_log_at_trx_commit"], "1");
    check_settings(engine, &facts).unwrap();
    assert_eq!(facts.provenance["tls"], "off");
    assert!(!format!("{facts:?} {endpoint:?}").contains(endpoint.password.as_str()));
    // Nobody gets in without the password, and there is nobody else.
    assert_eq!(endpoint.password.len(), 32);
    let users = "SELECT GROUP_CONCAT(User, '@', Host ORDER BY User, Host) FROM mysql.user \
                 WHERE User <> 'mariadb.sys'";
    assert_eq!(client(endpoint, users), "root@%,root@localhost");
    let open = "SELECT COUNT(*) FROM mysql.user \
                WHERE User = 'root' AND COALESCE(authentication_string, '') = ''";
    assert_eq!(client(endpoint, open), "0");
    let databases = client(endpoint, "SHOW DATABASES");
    assert!(databases.lines().any(|name| name == "bedplate"), "{databases}");
    assert!(!databases.contains("lost+found") && !databases.contains("test"), "{databases}");
    assert_eq!(endpoint.database, "bedplate");
}

#[tokio::test]
async fn a_process_on_a_unix_socket() {
    let trial = Trial::new();
    let engine = engine(
        process().await,
        TransportKind::Unix,
        &[
            ("innodb_buffer_pool_size", "32M"),
            ("innodb_page_size", "8k"),
            ("max_connections", "200"),
            ("sync_binlog", "1"),
            ("general_log", "1"),
        ],
    );
    engines::preflight(&plan(&engine, 4)).await.unwrap();
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_the_client(&*server, &engine).await;

    let facts = server.facts().await.unwrap();
    let mount = facts.data_mount.unwrap();
    let volume = trial.volume.0.display().to_string();
    assert_eq!(mount.mount_point, output("findmnt", &["-no", "TARGET", "-T", &volume]));
    let data_directory = trial.volume.0.join("data");
    assert_eq!(facts.settings["datadir"], format!("{}/", data_directory.display()));
    assert_eq!(facts.settings["skip_networking"], "ON");
    assert!(facts.provenance["mariadb_version"].contains(&facts.version));
    assert!(!trial.volume.0.join("data.secret").exists());
    let owner = output("stat", &["-c", "%U", &data_directory.display().to_string()]);
    assert_ne!(owner, "root");

    // A declared setting that the live server does not have stops a trial.
    for (name, value, expected) in [
        ("innodb_doublewrite", "OFF", "is declared as `OFF`, but the live server has `ON`"),
        ("innodb_page_size", "16K", "is declared as `16K`, but the live server has `8192`"),
        ("no_such", "1", "is declared as `1`, but the live server has no such setting"),
    ] {
        let mut declared = engine.clone();
        declared.settings.insert(name.into(), value.into());
        let error = check_settings(&declared, &server.facts().await.unwrap()).unwrap_err();
        assert_eq!(error.message, format!("`engine.settings.{name}` {expected}"));
    }

    // TLS is demanded and not offered.
    let tls = ClientTls::new(TlsMode::Require, None).unwrap();
    let refused = mariadb_session::connect(server.endpoint(), &tls).await.err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Driver);
    assert!(refused.message.contains("TLS"), "{refused}");

    assert_eq!(server.ended().await, None);
    server.stop().await.unwrap();
    assert_eq!(server.ended().await.unwrap(), "exited with status 0");
    assert!(server.log().await.unwrap().contains("Shutdown complete"));
    trial.end().await;
}

#[tokio::test]
async fn a_process_on_tcp_wants_its_password() {
    let trial = Trial::new();
    let engine = engine(process().await, TransportKind::Tcp, &[]);
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_the_client(&*server, &engine).await;
    let Address::Tcp(host, port) = &server.endpoint().address else { panic!("not TCP") };
    assert_eq!(host, "127.0.0.1");
    for password in ["wrong", ""] {
        let wrong = Endpoint { password: password.into(), ..server.endpoint().clone() };
        let refused = mariadb_session::connect(&wrong, &ClientTls::off()).await.err().unwrap();
        assert!(refused.message.contains("Access denied"), "{refused}");
    }

    // Its port is in use now, which another plan is told before anything is made.
    let mut second = engine.clone();
    second.settings.insert("port".into(), port.to_string());
    assert_eq!(preflight_error(&second, 1).await.message, format!("port {port} is in use"));

    // A server that dies is seen at once.
    let pid = std::fs::read_to_string(trial.volume.0.join("data/mysqld.pid")).unwrap();
    output("kill", &["-9", pid.trim()]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.ended().await.unwrap(), "was killed by signal 9");
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn a_process_that_offers_tls_is_reached_over_it() {
    let trial = Trial::new();
    let directory = trial.root.path().display().to_string();
    // An authority, and a certificate that it has signed for this server.
    output(
        "sh",
        &[
            "-euc",
            "cd \"$0\" && exec 2>openssl.log
             openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                 -subj /CN=authority -keyout ca.key -out ca.pem
             openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost \
                 -keyout server.key -out server.csr
             printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' >names
             openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
                 -extfile names -out server.pem
             chmod a+r server.key",
            &directory,
        ],
    );
    let file = |name: &str| format!("{directory}/{name}");
    let (certificate, key) = (file("server.pem"), file("server.key"));
    let mut engine = engine(
        process().await,
        TransportKind::Tcp,
        &[("ssl_cert", &certificate), ("ssl_key", &key)],
    );
    engine.tls = TlsMode::Verify;
    engine.tls_ca = Some(file("ca.pem").into());
    engines::preflight(&plan(&engine, 1)).await.unwrap();
    let server = trial.start(&engine).await.unwrap();
    let facts = server.facts().await.unwrap();
    check_settings(&engine, &facts).unwrap();
    assert_eq!(facts.provenance["tls"], "verify");
    assert!(facts.provenance["tls_cipher"].starts_with("TLS_"), "{:?}", facts.provenance);

    // The server of another authority is not the one that is meant.
    let stranger = ClientTls::new(TlsMode::Verify, Some(certificate.as_ref())).unwrap();
    assert!(mariadb_session::connect(server.endpoint(), &stranger).await.is_err());
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn tls_that_is_not_offered_fails_the_start() {
    let trial = Trial::new();
    let mut engine = engine(process().await, TransportKind::Unix, &[]);
    engine.tls = TlsMode::Require;
    let started = std::time::Instant::now();
    let error = trial.start(&engine).await.err().unwrap();
    assert!(error.message.contains("TLS"), "{error}");
    assert!(error.hint.unwrap().contains("ssl_cert"));
    assert!(started.elapsed() < Duration::from_secs(30));
    trial.end().await;
}

#[tokio::test]
async fn another_version_is_refused_unless_allowed() {
    let trial = Trial::new();
    let mut engine = engine(process().await, TransportKind::Unix, &[("port", "3399")]);
    engines::preflight(&plan(&engine, 1)).await.unwrap();
    engine.allow_other_version = false;
    let error = preflight_error(&engine, 1).await;
    assert!(error.message.starts_with("`engine.version` is 10.3, but "), "{error}");
    assert!(error.hint.unwrap().contains("allow_other_version"));
    let server = trial.start(&engine).await.unwrap();
    let facts = server.facts().await.unwrap();
    let error = check_version(&engine, &facts).unwrap_err();
    assert!(error.message.ends_with(&format!("the server that runs is {}", facts.version)));
    // A declared port is there on a Unix socket too.
    assert_eq!(facts.settings["port"], "3399");
    check_settings(&engine, &facts).unwrap();
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_made() {
    let nowhere = Provision::Process { bin_dir: "/nowhere/bin".into() };
    let error = preflight_error(&engine(nowhere, TransportKind::Unix, &[]), 1).await;
    assert_eq!(error.message, "there is no `mariadb-install-db` in /nowhere/bin");
    assert!(error.hint.unwrap().starts_with("apt-get install mariadb-server"));
    let mut verify = engine(process().await, TransportKind::Unix, &[]);
    verify.tls = TlsMode::Verify;
    verify.tls_ca = Some("/nowhere/ca.pem".into());
    let error = preflight_error(&verify, 1).await;
    assert!(error.message.contains("/nowhere/ca.pem"), "{error}");
    assert!(error.hint.unwrap().contains("engine.tls_ca"));
}

#[tokio::test]
async fn a_process_that_ends_early_shows_why() {
    let trial = Trial::new();
    let settings = [("innodb_buffer_pool_size", "plenty")];
    let engine = engine(process().await, TransportKind::Unix, &settings);
    let error = trial.start(&engine).await.err().unwrap();
    assert_eq!(error.message, "`mariadb-install-db` failed");
    assert!(error.evidence.unwrap().contains("plenty"));
    assert!(!trial.volume.0.join("data.secret").exists());
    trial.end().await;
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    for milliseconds in [30, 300, 900, 1800] {
        let trial = Trial::new();
        let engine = engine(process().await, TransportKind::Unix, &[]);
        let starting = trial.start(&engine);
        drop(tokio::time::timeout(Duration::from_millis(milliseconds), starting).await);
        let name = trial.id.resource_name();
        trial.ledger.undo_scope(&name).await.unwrap();
        let marker = trial.volume.0.display().to_string();
        let alive = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&marker))
        });
        assert!(!alive, "after {milliseconds} ms");
        trial.end().await;
    }
}

#[tokio::test]
async fn a_container_on_a_unix_socket() {
    let trial = Trial::new();
    let settings = [("innodb_buffer_pool_size", "64M"), ("max_connections", "170")];
    let mut engine = engine(container().await, TransportKind::Unix, &settings);
    engines::preflight(&plan(&engine, 4)).await.unwrap();
    // A mount root is not always as empty as a data directory must be.
    std::fs::create_dir(trial.volume.0.join("lost+found")).unwrap();
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_the_client(&*server, &engine).await;

    let facts = server.facts().await.unwrap();
    // It is not what was asked for, and says so.
    assert!(facts.version.starts_with("10.5."), "{}", facts.version);
    check_version(&engine, &facts).unwrap();
    engine.allow_other_version = false;
    check_version(&engine, &facts).unwrap_err();
    let name = trial.id.resource_name();
    let inside = |command: &[&str]| {
        let mut all = vec!["exec", name.as_str()];
        all.extend(command);
        output("docker", &all)
    };
    assert!(inside(&["mysqld", "--version"]).contains(&facts.version));
    let mount = facts.data_mount.unwrap();
    assert_eq!(mount.mount_point, "/var/lib/mysql");
    assert_eq!(mount.fs_type, inside(&["findmnt", "-no", "FSTYPE", "-T", "/var/lib/mysql/data"]));
    assert_eq!(facts.settings["datadir"], "/var/lib/mysql/data/");
    assert_eq!(inside(&["stat", "-c", "%u %U", "/var/lib/mysql/data"]), "999 mysql");
    let inspected = |format: &str| output("docker", &["inspect", "--format", format, &name]);
    assert_eq!(facts.provenance["image"], "bedplate/mariadb:10.5");
    assert_eq!(facts.provenance["image_id"], inspected("{{.Image}}"));
    assert_eq!(
        inspected("{{len .HostConfig.PortBindings}} {{.HostConfig.PublishAllPorts}}"),
        "0 false"
    );

    assert_eq!(server.ended().await, None);
    server.stop().await.unwrap();
    assert_eq!(server.ended().await.unwrap(), "exited with status 0");
    let log = server.log().await.unwrap();
    assert!(log.contains("MariaDB init process done"), "standard output");
    assert!(log.contains("Shutdown complete"), "standard error");
    trial.end().await;
}

#[tokio::test]
async fn a_container_on_tcp_is_on_the_loopback_only() {
    let trial = Trial::new();
    let engine = engine(container().await, TransportKind::Tcp, &[]);
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_the_client(&*server, &engine).await;
    // Whatever the image's configuration says.
    assert_eq!(server.facts().await.unwrap().settings["max_connections"], "151");
    let Address::Tcp(host, port) = &server.endpoint().address else { panic!("not TCP") };
    assert_eq!(host, "127.0.0.1");
    let published = output("docker", &["port", &trial.id.resource_name()]);
    assert_eq!(published, format!("3306/tcp -> 127.0.0.1:{port}"));
    let wrong = Endpoint { password: "wrong".into(), ..server.endpoint().clone() };
    assert!(mariadb_session::connect(&wrong, &ClientTls::off()).await.is_err());

    output("docker", &["kill", &trial.id.resource_name()]);
    assert_eq!(server.ended().await.unwrap(), "exited with status 137");
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn a_container_that_ends_early_shows_why() {
    let trial = Trial::new();
    let settings = [("no_such_setting", "plenty")];
    let engine = engine(container().await, TransportKind::Unix, &settings);
    let error = trial.start(&engine).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Provision);
    assert!(error.message.ends_with("before it was ready"), "{error}");
    assert!(error.evidence.unwrap().contains("plenty"));
    trial.end().await;
}

#[tokio::test]
async fn several_instances_have_a_database_and_a_user_each() {
    for transport in [TransportKind::Unix, TransportKind::Tcp] {
        let trial = Trial::new();
        let engine = engine(process().await, transport, &[]);
        let server = trial.start_for(&engine, 2).await.unwrap();
        let mut seen = Vec::new();
        for endpoint in server.instances() {
            let mut session = server.session(endpoint).await.unwrap();
            session.execute("CREATE TABLE mine (a INT)").await.unwrap();
            let whose = "SELECT CONCAT(DATABASE(), ' ', SUBSTRING_INDEX(CURRENT_USER(), '@', 1))";
            seen.push(value(&mut *session, whose).await);
            let other = if endpoint.user == "bench01" { "bench02" } else { "bench01" };
            session.execute(&format!("CREATE TABLE {other}.theirs (a INT)")).await.unwrap_err();
        }
        assert_eq!(seen, ["bench01 bench01", "bench02 bench02"]);
        server.stop().await.unwrap();
        trial.end().await;
    }
}

#[tokio::test]
async fn instances_leave_no_database_and_no_user_in_an_existing_server() {
    let host = Trial::new();
    let server = host.start(&engine(process().await, TransportKind::Unix, &[])).await.unwrap();
    let mut session = server.session(server.endpoint()).await.unwrap();
    for statement in [
        "CREATE USER maker@localhost",
        "GRANT ALL ON *.* TO maker@localhost WITH GRANT OPTION",
        "CREATE USER poor@localhost",
        r"GRANT ALL ON `bedplate\_%`.* TO poor@localhost",
    ] {
        session.execute(statement).await.unwrap();
    }
    session.execute("SET SESSION group_concat_max_len = 1000000").await.unwrap();
    let everything = "SELECT GROUP_CONCAT(x ORDER BY x) FROM (\
         SELECT SCHEMA_NAME AS x FROM information_schema.SCHEMATA UNION ALL \
         SELECT CONCAT(User, '@', Host) FROM mysql.user UNION ALL \
         SELECT CONCAT(User, '@', Host, Db) FROM mysql.db) AS names";
    let before = value(&mut *session, everything).await;

    let Address::Unix(socket) = &server.endpoint().address else { panic!("not a socket") };
    let url = |user: &str| Provision::Url {
        url: format!("mysql://{user}@localhost?socket={}", socket.display()),
    };
    let several = |user: &str| {
        let mut plan = plan(&engine(url(user), TransportKind::Unix, &[]), 30);
        plan.cells[0].workload.instances = 3;
        plan
    };
    let error = engines::preflight(&several("poor")).await.unwrap_err();
    assert_eq!(error.message, "user poor may not make a user for each of several instances");
    assert_eq!(
        error.hint.as_deref(),
        Some("GRANT ALL ON *.* TO 'poor'@'localhost' WITH GRANT OPTION")
    );
    engines::preflight(&several("maker")).await.unwrap();

    let trial = Trial::new();
    let existing = engine(url("maker"), TransportKind::Unix, &[]);
    let ours = trial.start_for(&existing, 2).await.unwrap();
    let name = trial.id.resource_name().replace('-', "_");
    for (endpoint, number) in ours.instances().iter().zip(["01", "02"]) {
        let mut inside = ours.session(endpoint).await.unwrap();
        inside.execute("CREATE TABLE mine (a INT)").await.unwrap();
        assert_eq!(value(&mut *inside, "SELECT DATABASE()").await, format!("{name}_{number}"));
    }
    ours.stop().await.unwrap();
    trial.end().await;
    assert_eq!(value(&mut *session, everything).await, before);

    drop(session);
    server.stop().await.unwrap();
    host.end().await;
}

#[tokio::test]
async fn an_existing_server_gets_one_database_and_loses_it() {
    let host = Trial::new();
    let own = engine(process().await, TransportKind::Unix, &[("max_connections", "50")]);
    let server = host.start(&own).await.unwrap();
    let mut session = server.session(server.endpoint()).await.unwrap();
    // The password of a URL comes from the environment, which tests share: this user has none.
    for statement in [
        "CREATE USER alice@localhost",
        r"GRANT ALL ON `bedplate\_%`.* TO alice@localhost",
        "CREATE USER bob@localhost",
        "CREATE DATABASE pgbench",
        "CREATE DATABASE bedplate_decoy",
        "CREATE TABLE bedplate_decoy.kept (a INT) COMMENT 'bedplate:bedplate-decoy'",
        // What a server older than 10.5 gets: a mark without a comment of the database.
        "CREATE DATABASE bedplate_old_t0001",
        "CREATE TABLE bedplate_old_t0001.bedplate_mark (a INT) COMMENT 'bedplate:bedplate-old-t0001'",
    ] {
        session.execute(statement).await.unwrap();
    }
    let everything = "SELECT GROUP_CONCAT(x ORDER BY x) FROM (\
         SELECT SCHEMA_NAME AS x FROM information_schema.SCHEMATA UNION ALL \
         SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA NOT IN ('information_schema', 'performance_schema', 'sys') UNION ALL \
         SELECT CONCAT(User, '@', Host) FROM mysql.user) AS names";
    session.execute("SET SESSION group_concat_max_len = 1000000").await.unwrap();
    let before = value(&mut *session, everything).await;

    let Address::Unix(socket) = &server.endpoint().address else { panic!("not a socket") };
    let url = |user: &str| format!("mysql://{user}@localhost?socket={}", socket.display());
    let trial = Trial::new();
    let settings = [("max_connections", "50")];
    let existing = engine(Provision::Url { url: url("alice") }, TransportKind::Unix, &settings);
    engines::preflight(&plan(&existing, 47)).await.unwrap();
    let error = preflight_error(&existing, 48).await;
    assert!(error.message.starts_with("`workload.clients` = 48 does not fit"), "{error}");
    let mut of_bob = existing.clone();
    of_bob.provision = Provision::Url { url: url("bob") };
    let error = preflight_error(&of_bob, 1).await;
    assert_eq!(error.message, "user bob may not make a database whose name begins with bedplate_");
    assert_eq!(error.hint.as_deref(), Some(r"GRANT ALL ON `bedplate\_%`.* TO 'bob'@'localhost'"));

    let ours = trial.start(&existing).await.unwrap();
    let schema = trial.id.resource_name().replace('-', "_");
    assert_eq!(ours.endpoint().database, schema);
    let facts = ours.facts().await.unwrap();
    check_settings(&existing, &facts).unwrap();
    assert_eq!(facts.data_mount, None);
    assert_eq!(facts.provenance["schema"], schema);
    let mut inside = ours.session(ours.endpoint()).await.unwrap();
    assert_eq!(value(&mut *inside, "SELECT DATABASE()").await, schema);
    // The mark is the comment, and no table of ours is in the way.
    assert_eq!(inside.query("SHOW TABLES").await.unwrap(), Vec::<Vec<Option<String>>>::new());
    inside.execute("CREATE TABLE numbers (n INT)").await.unwrap();
    drop(inside);

    // A second trial of the same name would be given somebody else's database: it is refused.
    let mut twice = Trial::new();
    twice.id = trial.id.clone();
    let error = twice.start(&existing).await.err().unwrap();
    assert!(error.message.contains("exists"), "{error}");

    ours.stop().await.unwrap();
    assert_eq!(server.ended().await, None);
    trial.end().await;
    assert_eq!(value(&mut *session, everything).await, before);
    twice.end().await;

    // What does not carry our mark is left alone; what is gone is no error.
    let drop_schema = |name: &'static str| {
        let url = url("alice");
        async move { engines::url::drop_schema(&url, name, None, ClientTls::off()).await }
    };
    let error = drop_schema("bedplate_decoy").await.unwrap_err();
    assert!(error.message.contains("is left alone"), "{error}");
    drop_schema("bedplate_gone").await.unwrap();
    assert_eq!(value(&mut *session, everything).await, before);
    drop_schema("bedplate_old_t0001").await.unwrap();
    let after = value(&mut *session, everything).await;
    assert_eq!(
        after,
        before.replace("bedplate_old_t0001,", "").replace("bedplate_old_t0001.bedplate_mark,", "")
    );

    drop(session);
    server.stop().await.unwrap();
    host.end().await;
}
