//! The MariaDB wire, session and driver against a live server of this machine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_adapters::drivers::mariadb::MariadbWire;
use bedplate_adapters::drivers::mariadb_session::{self, MariadbSession};
use bedplate_adapters::drivers::tls::ClientTls;
use bedplate_adapters::drivers::{IoMethod, MariadbDriver};
use bedplate_core::load::{
    Control, LoadDriver, Program, Reply, Step, ThreadEvent, ThreadJob, ThreadReport, Wire,
};
use bedplate_core::plan::{QueryProtocol, TlsMode};
use bedplate_core::script::{Script, Statement};
use bedplate_core::seam::{Address, Endpoint, Session};
use bytes::BytesMut;
use tempfile::TempDir;

const IO_METHODS: [IoMethod; 2] = [IoMethod::Uring, IoMethod::Epoll];
const PROTOCOLS: [QueryProtocol; 3] =
    [QueryProtocol::Simple, QueryProtocol::Extended, QueryProtocol::Prepared];

/// A server of our own, gone with the value.
struct Server {
    root: TempDir,
    port: u16,
    child: Child,
}

impl Server {
    async fn start(options: &[&str]) -> Self {
        let root =
            tempfile::Builder::new().prefix("bedplate-test-").tempdir_in("/var/tmp").unwrap();
        Self::start_in(root, options).await
    }

    async fn start_in(root: TempDir, options: &[&str]) -> Self {
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let data = root.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut user = Vec::new();
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = id_of_mysql();
            chown(&data, Some(uid), Some(gid)).unwrap();
            user.push("--user=mysql".to_owned());
        }
        let made = Command::new(program("mariadb-install-db"))
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .args(&user)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program("mariadbd"))
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--max-allowed-packet=64M"])
            .args(["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"])
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", data.join("socket").display()))
            .arg(format!("--port={port}"))
            .args(&user)
            .args(options)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(root.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let server = Self { root, port, child };
        let until = Instant::now() + Duration::from_secs(60);
        let endpoint = Endpoint { database: String::new(), ..server.endpoint("root", "") };
        let mut root_session = loop {
            match mariadb_session::connect(&endpoint, &ClientTls::off()).await {
                Ok(session) => break session,
                Err(error) => assert!(Instant::now() < until, "{error:?}\n{}", server.log()),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        root_session.execute("CREATE DATABASE d").await.unwrap();
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.root.path().join("log")).unwrap()
    }

    fn endpoint(&self, user: &str, password: &str) -> Endpoint {
        Endpoint {
            address: Address::Unix(self.root.path().join("data/socket")),
            user: user.into(),
            password: password.into(),
            database: "d".into(),
            session_settings: Vec::new(),
        }
    }

    fn tcp_endpoint(&self, host: &str, user: &str, password: &str) -> Endpoint {
        let address = Address::Tcp(host.into(), self.port);
        Endpoint { address, ..self.endpoint(user, password) }
    }

    async fn root(&self) -> MariadbSession {
        mariadb_session::connect(&self.endpoint("root", ""), &ClientTls::off()).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(name: &str) -> PathBuf {
    ["/usr/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} of mariadb-server is not installed"))
}

fn id_of_mysql() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("mysql:")).unwrap();
    let fields: Vec<_> = line.split(':').collect();
    (fields[2].parse().unwrap(), fields[3].parse().unwrap())
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A wire over a blocking socket.
struct Client {
    wire: MariadbWire,
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    out: BytesMut,
    received: usize,
    round_trips: usize,
    /// Statements sent so far; the place of one is its number, as if all were of one script.
    statements: Vec<Statement>,
}

impl Client {
    fn open(endpoint: &Endpoint, protocol: QueryProtocol, tls: &ClientTls) -> Result<Self, String> {
        let timeout = Some(Duration::from_secs(30));
        let stream: Box<dyn Stream> = match &endpoint.address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(timeout).unwrap();
                Box::new(stream)
            }
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
                stream.set_read_timeout(timeout).unwrap();
                Box::new(stream)
            }
        };
        let wire = MariadbWire::new(endpoint, protocol, tls);
        let (input, out) = (Vec::new(), BytesMut::new());
        let mut client =
            Self { wire, stream, input, out, received: 0, round_trips: 0, statements: Vec::new() };
        client.wire.open(&mut client.out);
        client.flush();
        match client.reply() {
            Reply::Done => Ok(client),
            Reply::Broken(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    fn flush(&mut self) {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).unwrap();
            self.round_trips += 1;
        }
        self.out.clear();
    }

    fn reply(&mut self) -> Reply {
        let mut buffer = vec![0; 65_536];
        loop {
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => return Reply::Broken("closed".into()),
                Ok(count) => count,
                Err(error) => return Reply::Broken(error.to_string()),
            };
            self.received += count;
            self.input.extend_from_slice(&buffer[..count]);
            let (consumed, reply) = self.wire.receive(&self.input, &mut self.out);
            self.input.drain(..consumed);
            assert!(self.input.len() < 4096, "rows are not kept");
            self.flush();
            if reply != Reply::Pending {
                return reply;
            }
        }
    }

    fn send(&mut self, statement: &Statement, values: &[i64]) {
        (self.received, self.round_trips) = (0, 0);
        let known = self.statements.iter().position(|known| known.text == statement.text);
        let index = known.unwrap_or(self.statements.len());
        if known.is_none() {
            self.statements.push(Statement { index, ..statement.clone() });
        }
        self.wire.request(&self.statements[index], values, &mut self.out);
        self.flush();
    }

    fn run(&mut self, statement: &Statement, values: &[i64]) -> Reply {
        self.send(statement, values);
        self.reply()
    }

    fn text(&mut self, text: &str) -> Reply {
        self.run(&statement(text), &[])
    }
}

fn statement(text: &str) -> Statement {
    script(text).statements().next().unwrap().clone()
}

fn script(text: &str) -> Script {
    Script::compile(text, &["a", "b"]).unwrap()
}

fn job(endpoint: Endpoint, protocol: QueryProtocol, text: &str, transactions: u64) -> ThreadJob {
    ThreadJob {
        scripts: Arc::new([script(text)]),
        given: vec![1, 2],
        protocol,
        endpoint,
        first_client: 0,
        programs: vec![repeated(Some(transactions)); 4],
        max_tries: 1,
        arrivals: None,
        seed: 1,
        warmup: Duration::ZERO,
        window: None,
        grace: Duration::from_secs(10),
    }
}

/// One transaction again and again.
fn repeated(passes: Option<u64>) -> Program {
    Program { steps: Arc::new([Step::Transaction(0)]), passes }
}

/// Runs a thread of four clients; refusals and report.
fn run_driver(io: IoMethod, tls: ClientTls, job: ThreadJob) -> (Vec<String>, ThreadReport) {
    let (mut refusals, mut report) = (Vec::new(), ThreadReport::default());
    let control = Control::default();
    control.start(Instant::now());
    MariadbDriver::new(io, tls).run_thread(job, &control, &mut |event| match event {
        ThreadEvent::Connected { refused } => refusals = refused,
        ThreadEvent::Interval(_) => {}
        ThreadEvent::Ended(ended) => report = *ended,
    });
    (refusals, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_all_protocols_are_read_to_their_end() {
    let server = Server::start(&["--skip-ssl"]).await;
    let mut root = server.root().await;
    root.execute(
        "CREATE TABLE t (a BIGINT PRIMARY KEY, b BIGINT, c LONGTEXT);
         INSERT INTO t SELECT seq, IF(seq % 3 = 0, NULL, -seq), NULL FROM seq_1_to_5000;
         CREATE PROCEDURE p() BEGIN SELECT 1; SELECT a FROM t; UPDATE t SET b = 7 WHERE a = 1; END",
    )
    .await
    .unwrap();
    // Packets of 16 MiB and more, and one that is exactly full.
    root.execute(
        "INSERT INTO t VALUES (-1, 0, REPEAT('x', 70000)), (-2, 0, REPEAT('y', 17000000)),
         (-3, 0, REPEAT('z', 0xffffff - 4)), (-4, 0, REPEAT('z', 33554432))",
    )
    .await
    .unwrap();
    for protocol in PROTOCOLS {
        let mut client = Client::open(&server.endpoint("root", ""), protocol, &ClientTls::off());
        let client = client.as_mut().unwrap();
        let point = statement("SELECT b FROM t WHERE a = :a;");
        for a in [1, 3, 5000, 100_000, i64::MIN, 17] {
            assert_eq!(client.run(&point, &[a, 0]), Reply::Done, "{protocol:?} {a}");
        }
        let round_trips = if protocol == QueryProtocol::Extended { 2 } else { 1 };
        assert_eq!(client.round_trips, round_trips, "{protocol:?}");
        // Values are bound as they are.
        let update = statement("UPDATE t SET b = :b WHERE a = :a;");
        for b in [i64::MIN, -1, 0, 1 << 40, i64::MAX] {
            assert_eq!(client.run(&update, &[2, b]), Reply::Done);
            let stored = root.query("SELECT b FROM t WHERE a = 2").await.unwrap();
            assert_eq!(stored, [[Some(b.to_string())]], "{protocol:?}");
        }
        assert_eq!(client.text("SELECT a, b, c FROM t WHERE a > 0;"), Reply::Done);
        assert!(client.received > 5000 * 10, "{protocol:?}: {}", client.received);
        for (a, length) in [(-1, 70_000), (-2, 17_000_000), (-3, 0xff_ff_fb), (-4, 33_554_432)] {
            let long = statement("SELECT c FROM t WHERE a = :a;");
            assert_eq!(client.run(&long, &[a, 0]), Reply::Done, "{protocol:?} {a}");
            assert!(client.received > length, "{protocol:?} {a}");
        }
        // What is sent may be as long.
        let long = format!("SELECT LENGTH('{}');", "x".repeat(17_000_000));
        assert_eq!(client.text(&long), Reply::Done);
        assert_eq!(client.text("CALL p();"), Reply::Done);
        for text in ["BEGIN;", "ROLLBACK;", "SET autocommit = 1;", "SHOW TABLES;", "DO 1;"] {
            assert_eq!(client.text(text), Reply::Done, "{protocol:?} {text}");
        }
        let Reply::Failed(failure) = client.text("SELECT * FROM nope;") else { panic!() };
        assert_eq!(failure.sqlstate, "42S02");
        assert_eq!(failure.message, "1146: Table 'd.nope' doesn't exist");
        assert!(!failure.retryable);
        let Reply::Failed(failure) = client.text("INSERT INTO t VALUES (1, 1, '');") else {
            panic!()
        };
        assert_eq!(failure.sqlstate, "23000");
        assert_eq!(client.run(&point, &[1, 0]), Reply::Done);
        // Nothing of a statement is left in the server, once it has read that it is closed.
        assert_eq!(client.text("DO 1;"), Reply::Done);
        let open = root.query("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").await.unwrap()[0][1]
            .clone()
            .unwrap();
        if protocol != QueryProtocol::Prepared {
            assert_eq!(open, "0", "{protocol:?}");
        }
        client.wire.terminate(&mut client.out);
        client.flush();
        assert_eq!(client.reply(), Reply::Broken("closed".into()));
    }
    drop(root);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!server.log().contains("Aborted connection"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_and_encryption() {
    let root = tempfile::Builder::new().prefix("bedplate-test-").tempdir_in("/var/tmp").unwrap();
    make_certificates(root.path());
    let file = |name: &str| root.path().join(name);
    let options = [
        format!("--ssl-ca={}", file("ca.pem").display()),
        format!("--ssl-cert={}", file("server.pem").display()),
        format!("--ssl-key={}", file("server.key").display()),
        "--secure-auth=0".to_owned(),
    ];
    let (ca, stranger) = (file("ca.pem"), file("stranger.pem"));
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let server = Server::start_in(root, &options).await;
    let mut session = server.root().await;
    session
        .execute(
            "INSTALL SONAME 'auth_ed25519';
             INSTALL SONAME 'auth_pam_v1';
             CREATE USER native IDENTIFIED VIA mysql_native_password USING PASSWORD('secret');
             CREATE USER empty;
             CREATE USER signer IDENTIFIED VIA ed25519 USING PASSWORD('a longer secret, äöü');
             CREATE USER old IDENTIFIED VIA mysql_old_password USING '0123456789abcdef';
             CREATE USER pam IDENTIFIED VIA pam USING 'other';
             CREATE USER careful IDENTIFIED VIA ed25519 USING PASSWORD('secret') REQUIRE SSL;
             GRANT ALL ON d.* TO native, empty, signer, old, pam, careful",
        )
        .await
        .unwrap();
    let off = ClientTls::off();
    let require = ClientTls::new(TlsMode::Require, None).unwrap();
    let verify = ClientTls::new(TlsMode::Verify, Some(&ca)).unwrap();
    let astray = ClientTls::new(TlsMode::Verify, Some(&stranger)).unwrap();
    let open = |endpoint: Endpoint, tls: &ClientTls| {
        Client::open(&endpoint, QueryProtocol::Prepared, tls).map(|_| ())
    };
    for tls in [&off, &require, &verify] {
        for (user, password) in
            [("native", "secret"), ("empty", ""), ("signer", "a longer secret, äöü")]
        {
            for endpoint in
                [server.endpoint(user, password), server.tcp_endpoint("localhost", user, password)]
            {
                assert_eq!(open(endpoint.clone(), tls), Ok(()), "{endpoint:?} {:?}", tls.mode());
                let mut session = mariadb_session::connect(&endpoint, tls).await.unwrap();
                let cipher = session.query("SHOW STATUS LIKE 'Ssl_cipher'").await.unwrap();
                let encrypted = cipher[0][1].as_deref() != Some("");
                assert_eq!(encrypted, tls.mode() != TlsMode::Off);
            }
            let Err(reason) = open(server.endpoint(user, "wrong"), tls) else { panic!("{user}") };
            let start = format!("1045 (28000): Access denied for user '{user}'@'localhost'");
            assert!(reason.starts_with(&start), "{reason}");
        }
    }
    // A user who must be encrypted.
    assert_eq!(open(server.endpoint("careful", "secret"), &verify), Ok(()));
    let Err(reason) = open(server.endpoint("careful", "secret"), &off) else { panic!() };
    assert!(reason.starts_with("1045 (28000): "), "{reason}");
    // Large results and long statements through TLS.
    for protocol in PROTOCOLS {
        let endpoint = server.endpoint("native", "secret");
        let mut client = Client::open(&endpoint, protocol, &require).unwrap();
        assert_eq!(client.text("SELECT REPEAT('x', 17000000);"), Reply::Done);
        assert!(client.received > 17_000_000);
        let long = format!("SELECT LENGTH('{}');", "x".repeat(17_000_000));
        assert_eq!(client.text(&long), Reply::Done);
        assert_eq!(client.text("SELECT 1;"), Reply::Done);
    }
    // Who is not who he should be.
    for (endpoint, tls, part) in [
        (server.endpoint("native", "secret"), &astray, "UnknownIssuer"),
        (server.tcp_endpoint("127.0.0.1", "native", "secret"), &verify, "not valid for name"),
    ] {
        let Err(reason) = open(endpoint.clone(), tls) else { panic!() };
        assert!(reason.starts_with("TLS: invalid peer certificate: "), "{reason}");
        assert!(reason.contains(part), "{reason}");
        let error = mariadb_session::connect(&endpoint, tls).await.err().unwrap();
        assert!(error.message.contains("TLS: invalid peer certificate: "), "{error:?}");
    }
    // Plugins that are not known here.
    for (user, plugin) in [("old", "mysql_old_password"), ("pam", "dialog")] {
        let reason = format!(
            "the server asks for the authentication plugin `{plugin}`, which is not known here \
             (known: mysql_native_password, client_ed25519)"
        );
        assert_eq!(open(server.endpoint(user, "secret"), &off), Err(reason));
    }
    let nowhere = Endpoint { database: "nowhere".into(), ..server.endpoint("root", "") };
    let reason = "1049 (42000): Unknown database 'nowhere'";
    assert_eq!(open(nowhere.clone(), &off), Err(reason.into()));
    let error = mariadb_session::connect(&nowhere, &off).await.err().unwrap();
    assert!(error.message.ends_with(reason), "{error:?}");

    // The driver, encrypted.
    session
        .execute("CREATE TABLE t (a INT PRIMARY KEY, b BIGINT); INSERT INTO t VALUES (1, 0)")
        .await
        .unwrap();
    for tls in [off, require, verify] {
        for protocol in PROTOCOLS {
            let endpoint = server.tcp_endpoint("localhost", "signer", "a longer secret, äöü");
            let text = "\\set x random(1, 9)\nUPDATE t SET b = b + 1 WHERE a = 1 AND :x > 0;\nSELECT * FROM t;";
            for io in IO_METHODS {
                let job = job(endpoint.clone(), protocol, text, 50);
                let (refused, report) = run_driver(io, tls.clone(), job);
                assert_eq!((refused, &report.lost), (vec![], &vec![]));
                assert_eq!(report.committed_all, 200);
            }
        }
    }
    let sum = session.query("SELECT b FROM t").await.unwrap();
    assert_eq!(sum, [[Some("3600".into())]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_their_class() {
    let mut server = Server::start(&["--skip-ssl"]).await;
    let mut root = server.root().await;
    root.execute(
        "CREATE TABLE t (a INT PRIMARY KEY, b INT) ENGINE = InnoDB;
         INSERT INTO t VALUES (1, 0), (2, 0)",
    )
    .await
    .unwrap();
    let off = ClientTls::off();
    let mut endpoint = server.endpoint("root", "");
    endpoint.session_settings =
        vec![("innodb_lock_wait_timeout".into(), "1".into()), ("sql_mode".into(), "ANSI".into())];
    let update = statement("UPDATE t SET b = b + 1 WHERE a = :a;");
    for protocol in PROTOCOLS {
        let mut one = Client::open(&endpoint, protocol, &off).unwrap();
        let mut two = Client::open(&endpoint, protocol, &off).unwrap();
        // A lock that does not come.
        assert_eq!(one.text("BEGIN;"), Reply::Done);
        assert_eq!(one.run(&update, &[1, 0]), Reply::Done);
        assert_eq!(two.text("BEGIN;"), Reply::Done);
        let Reply::Failed(failure) = two.run(&update, &[1, 0]) else { panic!() };
        assert_eq!((failure.sqlstate.as_str(), failure.retryable), ("HY000", true));
        assert!(failure.message.starts_with("1205: Lock wait timeout"), "{failure:?}");
        // A deadlock.
        assert_eq!(two.run(&update, &[2, 0]), Reply::Done);
        one.send(&update, &[2, 0]);
        if protocol == QueryProtocol::Extended {
            // Let it come as far as the execution.
            let until = Instant::now() + Duration::from_millis(100);
            while Instant::now() < until && one.round_trips < 2 {
                let mut buffer = [0; 4096];
                let count = one.stream.read(&mut buffer).unwrap();
                let (consumed, reply) = one.wire.receive(&buffer[..count], &mut one.out);
                assert_eq!((consumed, reply), (count, Reply::Pending));
                one.flush();
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        let (mut victim, reply, mut other) = match two.run(&update, &[1, 0]) {
            Reply::Done => {
                let reply = one.reply();
                (one, reply, two)
            }
            reply => {
                assert_eq!(one.reply(), Reply::Done);
                (two, reply, one)
            }
        };
        let Reply::Failed(failure) = reply else { panic!("{reply:?}") };
        assert_eq!((failure.sqlstate.as_str(), failure.retryable), ("40001", true));
        assert!(failure.message.starts_with("1213: Deadlock found"), "{failure:?}");
        for client in [&mut victim, &mut other] {
            client.wire.rollback(&mut client.out);
            client.flush();
            assert_eq!(client.reply(), Reply::Done);
        }
        assert_eq!(victim.run(&update, &[1, 0]), Reply::Done);
    }
    // A statement and connections that are killed. How a connection ends is up to the server: with
    // an error or without a word.
    let nap = statement("SELECT SLEEP(20) AS nap;");
    let napping = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
    for kill in ["QUERY", "SOFT CONNECTION", "CONNECTION"] {
        let mut client = Client::open(&endpoint, QueryProtocol::Simple, &off).unwrap();
        client.send(&nap, &[]);
        let number = loop {
            if let [row] = &root.query(napping).await.unwrap()[..] {
                break row[0].clone().unwrap();
            }
        };
        root.execute(&format!("KILL {kill} {number}")).await.unwrap();
        match client.reply() {
            Reply::Failed(failure) => {
                assert_eq!(kill, "QUERY");
                assert!(failure.message.starts_with("1317: "), "{failure:?}");
                assert!(!failure.retryable);
                assert_eq!(client.text("SELECT 1;"), Reply::Done);
            }
            Reply::Broken(reason) => {
                assert_ne!(kill, "QUERY");
                let killed = "1927 (70100): Connection was killed";
                assert!([killed, "closed"].contains(&reason.as_str()), "{reason}");
                println!("{kill}: {reason}");
            }
            reply => panic!("{reply:?}"),
        }
    }
    let setting = Endpoint {
        session_settings: vec![("nonsense".into(), "1".into())],
        ..server.endpoint("root", "")
    };
    let reason = "1193 (HY000): Unknown system variable 'nonsense'";
    assert_eq!(Client::open(&setting, QueryProtocol::Simple, &off).err().as_deref(), Some(reason));
    let require = ClientTls::new(TlsMode::Require, None).unwrap();
    let reason = "`engine.tls` is \"require\", but the server does not offer TLS";
    let plain = server.endpoint("root", "");
    assert_eq!(
        Client::open(&plain, QueryProtocol::Simple, &require).err().as_deref(),
        Some(reason)
    );
    let error = mariadb_session::connect(&plain, &require).await.err().unwrap();
    assert!(error.message.ends_with(reason), "{error:?}");

    // More clients than the server lets in; one more than the limit is let in for administrators.
    root.execute("CREATE USER guest; GRANT ALL ON d.* TO guest; SET GLOBAL max_connections = 10")
        .await
        .unwrap();
    let guest = server.endpoint("guest", "");
    let mut guests = Vec::new();
    let reason = loop {
        match Client::open(&guest, QueryProtocol::Simple, &off) {
            Ok(client) => guests.push(client),
            Err(reason) => break reason,
        }
        assert!(guests.len() < 20);
    };
    assert!(reason.ends_with("Too many connections"), "{reason}");
    assert!(reason.starts_with("1040 ("), "{reason}");
    drop(guests);
    root.execute("SET GLOBAL max_connections = 50").await.unwrap();

    // A server that dies in the middle of the load.
    let job = ThreadJob {
        programs: vec![repeated(None); 4],
        window: Some(Duration::from_secs(20)),
        ..job(plain, QueryProtocol::Prepared, "SELECT SLEEP(0.01);", 0)
    };
    let loads = IO_METHODS.map(|io| {
        let job = job.clone();
        std::thread::spawn(move || run_driver(io, ClientTls::off(), job))
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.child.kill().unwrap();
    for load in loads {
        let (refused, report) = load.join().unwrap();
        assert_eq!((refused, report.lost.len()), (vec![], 4));
        assert!(report.committed_all > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_execute_query_and_load() {
    let server = Server::start(&["--skip-ssl"]).await;
    let mut session = server.root().await;
    session.execute("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20)); DO 1").await.unwrap();
    let loading = "LOAD DATA LOCAL INFILE 'rows' INTO TABLE t";
    let mut next = 0;
    let mut chunks = || {
        next += 1;
        (next <= 300).then(|| {
            let rows = (0..100).map(|row| format!("{}\t\\N\n", next * 100 + row));
            rows.collect::<String>().into_bytes()
        })
    };
    assert_eq!(session.copy_in(loading, &mut chunks).await.unwrap(), 30_000);
    // A chunk of more than a packet.
    let mut big = Some((100_000..2_000_000).map(|a| format!("{a}\tb\n")).collect::<String>());
    let loaded = session.copy_in(loading, &mut || big.take().map(String::into_bytes)).await;
    assert_eq!(loaded.unwrap(), 1_900_000);
    let rows = session.query("SELECT COUNT(*), COUNT(b), MIN(a), NULL, 'ä' FROM t; SELECT 1").await;
    let text = |values: &[Option<&str>]| -> Vec<Option<String>> {
        values.iter().map(|value| value.map(str::to_owned)).collect()
    };
    assert_eq!(
        rows.unwrap(),
        [
            text(&[Some("1930000"), Some("1900000"), Some("100"), None, Some("ä")]),
            text(&[Some("1")])
        ]
    );
    let long = session.query("SELECT REPEAT('x', 40000000)").await.unwrap();
    assert_eq!(long[0][0].as_ref().unwrap().len(), 40_000_000);
    // Errors, after which the session goes on.
    let error = session.copy_in("DO 1", &mut || None).await.unwrap_err();
    assert!(error.message.ends_with("the server asks for no data after this statement"));
    let mut rows = Some(b"x\ty\n".to_vec());
    let into_nothing = "LOAD DATA LOCAL INFILE 'x' INTO TABLE u";
    let error = session.copy_in(into_nothing, &mut || rows.take()).await.unwrap_err();
    assert_eq!(error.message, "the server refused a statement: Table 'd.u' doesn't exist");
    let error = session.execute(loading).await.unwrap_err();
    assert!(error.message.ends_with("the server asks for a file of this machine"), "{error:?}");
    let error = session.query("SELECT 1; SELECT * FROM nope").await.unwrap_err();
    let evidence = "error: 1146 (42S02): Table 'd.nope' doesn't exist\n\
                    statement: SELECT 1; SELECT * FROM nope";
    assert_eq!(error.evidence.as_deref(), Some(evidence));
    assert_eq!(session.query("SELECT 2").await.unwrap(), [text(&[Some("2")])]);
    let missing = Endpoint {
        address: Address::Unix(server.root.path().join("nothing")),
        ..server.endpoint("root", "")
    };
    let error = mariadb_session::connect(&missing, &ClientTls::off()).await.err().unwrap();
    assert!(error.message.starts_with("cannot connect to /var/tmp/"), "{error:?}");
}

/// An authority with a server's certificate for `localhost`, and an authority that nobody asked.
fn make_certificates(directory: &Path) {
    let commands = "
        for name in ca stranger; do
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                -subj /CN=$name -keyout $name.key -out $name.pem
        done
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost \
            -keyout server.key -out server.csr
        echo 'subjectAltName = DNS:localhost' > names
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
            -extfile names -out server.pem
        chmod 644 server.key";
    let made = Command::new("sh").args(["-ec", commands]).current_dir(directory).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
