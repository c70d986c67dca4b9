//! PostgreSQL.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use bedplate_adapters::drivers::tls::ClientTls;
use bedplate_adapters::engines;
use bedplate_adapters::images::Image;
use bedplate_core::check::{check_settings, check_version};
use bedplate_core::error::ErrorKind;
use bedplate_core::plan::{
    EngineKind, EnginePlan, Initdb, Provision, SettingsProfile, TlsMode, TransportKind,
};
use bedplate_core::seam::{Address, Server};

use super::{Trial, built, installed, output, plan, preflight_error, value};

fn engine(provision: Provision, transport: TransportKind, settings: &[(&str, &str)]) -> EnginePlan {
    let mut all = BTreeMap::from(
        [("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on")]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    all.extend(settings.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    EnginePlan {
        label: "postgres".into(),
        kind: EngineKind::Postgres,
        version: "13".into(),
        allow_other_version: true,
        provision,
        transport,
        settings: all,
        settings_profile: SettingsProfile::Stock,
        pages: None,
        tls: TlsMode::Off,
        tls_ca: None,
        initdb: Some(Initdb { locale: "C".into(), encoding: "UTF8".into(), checksums: false }),
    }
}

async fn process() -> Provision {
    installed(EngineKind::Postgres).await
}

async fn container() -> Provision {
    built(Image::Postgres13).await
}

/// `psql` against a socket of a server whose local authentication is trust.
fn psql(server: &dyn Server, sql: &str) -> String {
    let endpoint = server.endpoint();
    let (host, port) = match &endpoint.address {
        Address::Unix(path) => {
            let port = path.file_name().unwrap().to_str().unwrap().rsplit('.').next().unwrap();
            (path.parent().unwrap().display().to_string(), port.to_owned())
        }
        Address::Tcp(host, port) => (host.clone(), port.to_string()),
    };
    let output = Command::new("psql")
        .args(["-X", "-At", "-h", &host, "-p", &port, "-U", &endpoint.user, &endpoint.database])
        .args(["-c", sql])
        .env("PGPASSWORD", &endpoint.password)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What the server says of itself is what psql is told.
async fn facts_agree_with_psql(server: &dyn Server, engine: &EnginePlan) {
    let facts = server.facts().await.unwrap();
    assert_eq!(facts.version_full, psql(server, "SELECT version()"));
    assert!(psql(server, "SHOW server_version").starts_with(&facts.version));
    let count = psql(server, "SELECT count(*) FROM pg_settings");
    assert_eq!(facts.settings.len().to_string(), count);
    for name in ["fsync", "shared_buffers", "lc_collate", "server_encoding", "data_checksums"] {
        if let Some(live) = facts.settings.get(name) {
            assert_eq!(*live, psql(server, &format!("SHOW {name}")), "{name}");
        }
    }
    assert_eq!(facts.settings["lc_collate"], "C");
    assert_eq!(facts.settings["server_encoding"], "UTF8");
    assert_eq!(facts.settings["data_checksums"], "off");
    check_settings(engine, &facts).unwrap();
    let password = &server.endpoint().password;
    assert!(!format!("{facts:?} {:?}", server.endpoint()).contains(password.as_str()));
}

#[tokio::test]
async fn a_process_on_a_unix_socket() {
    let trial = Trial::new();
    let engine = engine(
        process().await,
        TransportKind::Unix,
        &[("shared_buffers", "32MB"), ("work_mem", "8192"), ("checkpoint_timeout", "10min")],
    );
    engines::preflight(&plan(&engine, 4)).await.unwrap();
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_psql(&*server, &engine).await;

    let facts = server.facts().await.unwrap();
    let mount = facts.data_mount.unwrap();
    let volume = trial.volume.0.display().to_string();
    assert_eq!(mount.mount_point, output("findmnt", &["-no", "TARGET", "-T", &volume]));
    assert_eq!(mount.fs_type, output("findmnt", &["-no", "FSTYPE", "-T", &volume]));
    let data_directory = trial.volume.0.join("pgdata");
    assert_eq!(facts.settings["data_directory"], data_directory.display().to_string());
    assert!(facts.provenance["postgres_version"].starts_with("postgres (PostgreSQL)"));
    let owner = output("stat", &["-c", "%U", &data_directory.display().to_string()]);
    assert_ne!(owner, "root");

    // A declared setting that the live server does not have stops a trial.
    let mut declared = engine.clone();
    declared.settings.insert("synchronous_commit".into(), "remote_apply".into());
    let live = server.facts().await.unwrap();
    let error = check_settings(&declared, &live).unwrap_err();
    assert_eq!(
        error.message,
        "`engine.settings.synchronous_commit` is declared as `remote_apply`, \
         but the live server has `on`"
    );

    assert_eq!(server.ended().await, None);
    server.stop().await.unwrap();
    assert_eq!(server.ended().await.unwrap(), "exited with status 0");
    assert!(server.log().await.unwrap().contains("database system is shut down"));
    trial.end().await;
}

#[tokio::test]
async fn a_process_on_tcp_wants_its_password() {
    let trial = Trial::new();
    let engine = engine(process().await, TransportKind::Tcp, &[]);
    let server = trial.start(&engine).await.unwrap();
    let Address::Tcp(host, port) = &server.endpoint().address else { panic!("not TCP") };
    assert_eq!(host, "127.0.0.1");
    let mut wrong = server.endpoint().clone();
    wrong.password = "wrong".into();
    let refused = bedplate_adapters::drivers::session::connect(&wrong).await.err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Driver);
    assert!(refused.message.contains("password authentication failed"), "{refused}");

    // Its port is in use now, which another plan is told before anything is made.
    let mut second = engine.clone();
    second.settings.insert("port".into(), port.to_string());
    assert_eq!(preflight_error(&second, 1).await.message, format!("port {port} is in use"));

    // A server that dies is seen at once.
    let pid = std::fs::read_to_string(trial.volume.0.join("pgdata/postmaster.pid")).unwrap();
    output("kill", &["-9", pid.lines().next().unwrap()]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.ended().await.unwrap(), "was killed by signal 9");
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn another_version_is_refused_unless_allowed() {
    let trial = Trial::new();
    let mut engine = engine(process().await, TransportKind::Unix, &[]);
    engine.version = "9".into();
    engines::preflight(&plan(&engine, 1)).await.unwrap();
    engine.allow_other_version = false;
    let error = preflight_error(&engine, 1).await;
    assert!(error.message.starts_with("`engine.version` is 9, but "), "{error}");
    let server = trial.start(&engine).await.unwrap();
    let facts = server.facts().await.unwrap();
    let error = check_version(&engine, &facts).unwrap_err();
    assert!(error.message.ends_with(&format!("the server that runs is {}", facts.version)));
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_made() {
    let bad = |settings: &[(&str, &str)]| {
        engine(Provision::Process { bin_dir: "/nowhere".into() }, TransportKind::Unix, settings)
    };
    let error = preflight_error(&bad(&[]), 1).await;
    assert_eq!(error.message, "there is no `initdb` in /nowhere");
    let error = preflight_error(&bad(&[("port", "many")]), 1).await;
    assert_eq!(error.message, "`engine.settings.port` is `many`, not a port");
}

#[tokio::test]
async fn a_process_that_ends_early_shows_why() {
    let trial = Trial::new();
    let engine = engine(process().await, TransportKind::Unix, &[("shared_buffers", "plenty")]);
    let error = trial.start(&engine).await.err().unwrap();
    assert_eq!(error.message, "the server exited with status 1 before it was ready");
    assert!(error.evidence.unwrap().contains("plenty"));
    trial.end().await;
}

#[tokio::test]
async fn a_closed_directory_is_named() {
    let trial = Trial::new();
    // As an ordinary user our server runs as ourselves, and nothing of ours is closed to it.
    if !output("id", &["-u"]).eq("0") {
        return trial.end().await;
    }
    std::fs::set_permissions(trial.root.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let engine = engine(process().await, TransportKind::Unix, &[]);
    let error = trial.start(&engine).await.err().unwrap();
    assert!(error.message.contains(" cannot enter "), "{error}");
    assert!(error.hint.unwrap().contains("work_dir"));
    assert!(!trial.volume.0.join("pgdata").exists());
    trial.end().await;
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    for milliseconds in [30, 300, 900, 1500] {
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
    let mut engine = engine(container().await, TransportKind::Unix, &[("shared_buffers", "32MB")]);
    engine.allow_other_version = false;
    engines::preflight(&plan(&engine, 4)).await.unwrap();
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_psql(&*server, &engine).await;

    let facts = server.facts().await.unwrap();
    check_version(&engine, &facts).unwrap();
    assert_eq!(facts.version, "13.23");
    let name = trial.id.resource_name();
    let inside = |command: &[&str]| {
        let mut all = vec!["exec", name.as_str()];
        all.extend(command);
        output("docker", &all)
    };
    assert_eq!(facts.version_full, inside(&["psql", "-U", "postgres", "-Atc", "SELECT version()"]));
    let mount = facts.data_mount.unwrap();
    assert_eq!(mount.mount_point, "/var/lib/postgresql/data");
    let seen = inside(&["findmnt", "-no", "FSTYPE", "-T", "/var/lib/postgresql/data/pgdata"]);
    assert_eq!(mount.fs_type, seen);
    assert_eq!(facts.settings["data_directory"], "/var/lib/postgresql/data/pgdata");
    assert_eq!(
        facts.provenance["image_id"],
        output("docker", &["inspect", "--format", "{{.Image}}", &name])
    );
    let inspected = |format: &str| output("docker", &["inspect", "--format", format, &name]);
    assert_eq!(inspected("{{.HostConfig.ShmSize}}"), (256 << 20).to_string());
    assert_eq!(inspected("{{.HostConfig.Memory}}"), (1 << 30).to_string());
    assert_eq!(inspected("{{.HostConfig.NanoCpus}}"), "1500000000");
    assert_eq!(
        inspected("{{len .HostConfig.PortBindings}} {{.HostConfig.PublishAllPorts}}"),
        "0 false"
    );
    assert_eq!(inspected("{{index .Config.Labels \"bedplate.trial\"}}"), name);

    assert_eq!(server.ended().await, None);
    server.stop().await.unwrap();
    assert_eq!(server.ended().await.unwrap(), "exited with status 0");
    let log = server.log().await.unwrap();
    assert!(log.contains("PostgreSQL init process complete"), "standard output");
    assert!(log.contains("database system is shut down"), "standard error");
    trial.end().await;
}

#[tokio::test]
async fn a_container_on_tcp_is_on_the_loopback_only() {
    let trial = Trial::new();
    let engine = engine(container().await, TransportKind::Tcp, &[]);
    let server = trial.start(&engine).await.unwrap();
    facts_agree_with_psql(&*server, &engine).await;
    let Address::Tcp(host, port) = &server.endpoint().address else { panic!("not TCP") };
    assert_eq!(host, "127.0.0.1");
    let published = output("docker", &["port", &trial.id.resource_name()]);
    assert_eq!(published, format!("5432/tcp -> 127.0.0.1:{port}"));
    let mut wrong = server.endpoint().clone();
    wrong.password = "wrong".into();
    assert!(bedplate_adapters::drivers::session::connect(&wrong).await.is_err());

    output("docker", &["kill", &trial.id.resource_name()]);
    assert_eq!(server.ended().await.unwrap(), "exited with status 137");
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn a_container_that_ends_early_shows_why() {
    let trial = Trial::new();
    let engine = engine(container().await, TransportKind::Unix, &[("shared_buffers", "plenty")]);
    let error = trial.start(&engine).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Provision);
    assert!(error.message.ends_with("before it was ready"), "{error}");
    assert!(error.evidence.unwrap().contains("plenty"));
    trial.end().await;
}

#[tokio::test]
async fn an_image_that_cannot_be_had_is_named() {
    let trial = Trial::new();
    let provision = Provision::Container {
        images: vec!["registry.invalid/bedplate/none:0".into()],
        shm_size_bytes: 64 << 20,
        memory_bytes: None,
        cpus: None,
    };
    let engine = engine(provision, TransportKind::Unix, &[]);
    for error in [preflight_error(&engine, 1).await, trial.start(&engine).await.err().unwrap()] {
        assert_eq!(error.kind, ErrorKind::Provision);
        let expected = "image `registry.invalid/bedplate/none:0` cannot be had: ";
        assert!(error.message.starts_with(expected), "{error}");
        assert_eq!(
            error.hint.as_deref(),
            Some("pull or build it, or leave `engine.image` out: then the pinned one is taken")
        );
    }
    assert_eq!(trial.ledger.entries(), []);
    trial.end().await;
}

#[tokio::test]
async fn several_instances_have_a_schema_and_a_user_each() {
    let trial = Trial::new();
    let engine = engine(process().await, TransportKind::Unix, &[]);
    let server = trial.start_for(&engine, 3).await.unwrap();
    let mut seen = Vec::new();
    for endpoint in server.instances() {
        let mut session = server.session(endpoint).await.unwrap();
        session.execute("CREATE TABLE mine (a int)").await.unwrap();
        session.execute("VACUUM ANALYZE mine").await.unwrap();
        let whose = "SELECT schemaname || ' ' || tableowner || ' ' || current_user \
                     FROM pg_tables WHERE tablename = 'mine' AND tableowner = current_user";
        seen.push(value(&mut *session, whose).await);
        // Nothing in another instance's schema may be touched.
        let other = if endpoint.user == "bench01" { "bench02" } else { "bench01" };
        session.execute(&format!("CREATE TABLE {other}.theirs (a int)")).await.unwrap_err();
    }
    assert_eq!(
        seen,
        ["bench01 bench01 bench01", "bench02 bench02 bench02", "bench03 bench03 bench03"]
    );
    server.stop().await.unwrap();
    trial.end().await;
}

#[tokio::test]
async fn instances_leave_no_schema_and_no_user_in_an_existing_server() {
    let host = Trial::new();
    let server = host.start(&engine(process().await, TransportKind::Unix, &[])).await.unwrap();
    let mut session = server.session(server.endpoint()).await.unwrap();
    session
        .execute(
            "CREATE ROLE maker LOGIN CREATEROLE; GRANT CREATE ON DATABASE postgres TO maker; \
             CREATE ROLE poor LOGIN; GRANT CREATE ON DATABASE postgres TO poor",
        )
        .await
        .unwrap();
    let everything = "SELECT string_agg(x, ' ' ORDER BY x) FROM (\
         SELECT nspname::text AS x FROM pg_namespace UNION ALL \
         SELECT oid::regclass::text FROM pg_class UNION ALL \
         SELECT rolname::text FROM pg_roles) AS all_names";
    let before = value(&mut *session, everything).await;

    let Address::Unix(socket) = &server.endpoint().address else { panic!("not a socket") };
    let directory = socket.parent().unwrap().display();
    let url = |user: &str| Provision::Url {
        url: format!("host={directory} user={user} dbname=postgres"),
    };
    let several = |user: &str| {
        let mut plan = plan(&engine(url(user), TransportKind::Unix, &[]), 30);
        plan.cells[0].workload.instances = 3;
        plan
    };
    let error = engines::preflight(&several("poor")).await.unwrap_err();
    assert_eq!(error.message, "user poor may not make a user for each of several instances");
    assert_eq!(error.hint.as_deref(), Some("ALTER ROLE poor CREATEROLE"));
    engines::preflight(&several("maker")).await.unwrap();
    let mut many = several("maker");
    many.cells[0].workload.clients = 33;
    let error = engines::preflight(&many).await.unwrap_err();
    assert!(error.message.starts_with("`workload.clients` = 99 does not fit"), "{error}");

    let trial = Trial::new();
    let existing = engine(url("maker"), TransportKind::Unix, &[]);
    let ours = trial.start_for(&existing, 2).await.unwrap();
    let name = trial.id.resource_name().replace('-', "_");
    for (endpoint, number) in ours.instances().iter().zip(["01", "02"]) {
        let mut inside = ours.session(endpoint).await.unwrap();
        inside.execute("CREATE TABLE mine (a int)").await.unwrap();
        let schema = value(&mut *inside, "SELECT current_schema()").await;
        assert_eq!(schema, format!("{name}_{number}"));
    }
    ours.stop().await.unwrap();
    trial.end().await;
    assert_eq!(value(&mut *session, everything).await, before);

    drop(session);
    server.stop().await.unwrap();
    host.end().await;
}

#[tokio::test]
async fn an_existing_server_gets_one_schema_and_loses_it() {
    let host = Trial::new();
    let server = host.start(&engine(process().await, TransportKind::Unix, &[])).await.unwrap();
    let mut session = server.session(server.endpoint()).await.unwrap();
    session.execute("CREATE DATABASE pgbench").await.unwrap();
    session
        .execute("CREATE SCHEMA bedplate_decoy; CREATE TABLE bedplate_decoy.kept (a int)")
        .await
        .unwrap();
    let everything = "SELECT string_agg(x, ' ' ORDER BY x) FROM (\
         SELECT datname::text AS x FROM pg_database UNION ALL \
         SELECT nspname::text FROM pg_namespace UNION ALL \
         SELECT oid::regclass::text FROM pg_class UNION ALL \
         SELECT rolname::text FROM pg_roles) AS all_names";
    let before = value(&mut *session, everything).await;

    let Address::Unix(socket) = &server.endpoint().address else { panic!("not a socket") };
    let url = format!("host={} user=postgres dbname=postgres", socket.parent().unwrap().display());
    let trial = Trial::new();
    let existing = engine(Provision::Url { url: url.clone() }, TransportKind::Unix, &[]);
    engines::preflight(&plan(&existing, 90)).await.unwrap();
    let error = preflight_error(&existing, 99).await;
    assert!(error.message.starts_with("`workload.clients` = 99 does not fit"), "{error}");

    let ours = trial.start(&existing).await.unwrap();
    let schema = trial.id.resource_name().replace('-', "_");
    assert_eq!(ours.endpoint().session_settings, [("search_path".to_owned(), schema.clone())]);
    let facts = ours.facts().await.unwrap();
    check_settings(&existing, &facts).unwrap();
    assert_eq!(facts.data_mount, None);
    assert_eq!(facts.provenance["schema"], schema);

    // Set-up works in the schema, COPY included.
    let mut inside = ours.session(ours.endpoint()).await.unwrap();
    inside.execute("CREATE TABLE numbers (n int, t text)").await.unwrap();
    let mut chunks = (0..100).map(|n| format!("{n}\tnumber {n}\n").into_bytes());
    let rows = inside.copy_in("COPY numbers FROM STDIN", &mut || chunks.next()).await.unwrap();
    assert_eq!(rows, 100);
    let sum = format!("SELECT sum(n) FROM {schema}.numbers");
    assert_eq!(value(&mut *session, &sum).await, "4950");
    let error = inside
        .copy_in("COPY numbers FROM STDIN", &mut {
            let mut once = Some(b"not a number\tx\n".to_vec());
            move || once.take()
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::Driver);
    assert!(error.message.contains("invalid input syntax"), "{error}");
    assert!(error.evidence.unwrap().contains("COPY numbers"));
    assert_eq!(
        inside.query("SELECT NULL, 1, 'x'").await.unwrap(),
        [[None, Some("1".to_owned()), Some("x".to_owned())]]
    );
    drop(inside);

    ours.stop().await.unwrap();
    assert_eq!(server.ended().await, None);
    trial.end().await;
    assert_eq!(value(&mut *session, everything).await, before);

    // What does not carry our mark is left alone; what is gone is no error.
    let error = engines::url::drop_schema(&url, "bedplate_decoy", None, ClientTls::off())
        .await
        .unwrap_err();
    assert!(error.message.contains("is left alone"), "{error}");
    engines::url::drop_schema(&url, "bedplate_gone", None, ClientTls::off()).await.unwrap();
    assert_eq!(value(&mut *session, everything).await, before);

    drop(session);
    server.stop().await.unwrap();
    host.end().await;
}
