//! Real servers on this machine, started in each of the three ways.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mariadb;
mod postgres;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bedplate_adapters::engines::{self, EngineContext};
use bedplate_adapters::images::{self, Image};
use bedplate_adapters::ledger::Ledger;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{
    Ageing, CacheState, Cell, Design, EngineKind, EnginePlan, PLAN_VERSION, Plan, Profile,
    Provision, QueryProtocol, RunLength, Scaled, SiteKind, StorageKind, StoragePlan, Work,
    WorkloadPlan,
};
use bedplate_core::probe::Probe;
use bedplate_core::record::{Aged, TrialId, VolumeFacts};
use bedplate_core::seam::{Contents, Room, Server, Session, Volume, VolumeLocation};
use tempfile::TempDir;

/// A plain directory.
struct Directory(PathBuf);

#[async_trait]
impl Volume for Directory {
    fn location(&self) -> VolumeLocation {
        VolumeLocation::Path(self.0.clone())
    }

    async fn facts(&self) -> Result<VolumeFacts> {
        Ok(VolumeFacts::default())
    }

    fn devices(&self) -> Vec<Vec<String>> {
        Vec::new()
    }

    async fn room(&self) -> Option<Room> {
        None
    }

    async fn probe(&self) -> Result<Option<Probe>> {
        Ok(None)
    }

    async fn age(&self, _: Ageing, _: u64) -> Result<Aged> {
        Err(Error::provision("not aged"))
    }

    async fn contents(&self) -> Contents {
        Contents::default()
    }

    async fn forget(&self) -> Result<Option<f64>> {
        Ok(None)
    }

    async fn settle(&self, _: Duration) -> Result<bool> {
        Ok(true)
    }
}

/// A trial's surroundings; `end` checks that nothing is left.
struct Trial {
    root: TempDir,
    ledger: Ledger,
    id: TrialId,
    volume: Directory,
}

impl Trial {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let root =
            tempfile::Builder::new().prefix("bedplate-test-").tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let volume = root.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        let id = TrialId {
            run: format!("test{}", std::process::id()),
            trial: NUMBER.fetch_add(1, Ordering::Relaxed),
            block: 0,
            cell: 0,
        };
        let ledger = Ledger::open(&root.path().join("state")).unwrap();
        Self { root, ledger, id, volume: Directory(volume) }
    }

    async fn start(&self, engine: &EnginePlan) -> Result<Box<dyn Server>> {
        self.start_for(engine, 1).await
    }

    async fn start_for(&self, engine: &EnginePlan, instances: u32) -> Result<Box<dyn Server>> {
        let context = EngineContext {
            ledger: &self.ledger,
            id: &self.id,
            engine,
            instances,
            volume: &self.volume,
            work_dir: self.root.path(),
        };
        match engine.provision {
            Provision::Container { .. } => engines::container::start(&context).await,
            Provision::Process { .. } => engines::process::start(&context).await,
            Provision::Url { .. } => engines::url::start(&context).await,
        }
    }

    async fn end(self) {
        let name = self.id.resource_name();
        self.ledger.undo_scope(&name).await.unwrap();
        assert_eq!(self.ledger.entries(), []);
        assert!(!self.root.path().join(format!("{name}-server")).exists());
        assert_eq!(
            output("docker", &["ps", "--all", "--quiet", "--filter", &format!("name={name}")]),
            ""
        );
        self.root.close().unwrap();
    }
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The newest binaries of this machine.
async fn installed(kind: EngineKind) -> Provision {
    let offered =
        bedplate_adapters::capabilities::capabilities(Path::new("/var/tmp"), None, &[]).await;
    let newest = offered.engine(kind).binaries.first().expect("the database is installed");
    Provision::Process { bin_dir: newest.bin_dir.clone() }
}

async fn built(image: Image) -> Provision {
    images::build(&[image], &|_| {}).await.unwrap();
    Provision::Container {
        images: vec![image.tag()],
        shm_size_bytes: 256 << 20,
        memory_bytes: Some(1 << 30),
        cpus: Some(1.5),
    }
}

fn plan(engine: &EnginePlan, clients: u32) -> Plan {
    Plan {
        plan_version: PLAN_VERSION,
        name: "test".into(),
        site: SiteKind::Local,
        work_dir: "/var/tmp".into(),
        cells: vec![Cell {
            label: "only".into(),
            levels: BTreeMap::new(),
            engine: engine.clone(),
            storage: StoragePlan::fresh("x", StorageKind::Existing),
            workload: WorkloadPlan {
                work: Work::Tpcb(Scaled { scale: 1, filler_random_percent: 0 }),
                instances: 1,
                clients,
                threads: 1,
                protocol: QueryProtocol::Simple,
                max_tries: 1,
                cache: CacheState::Warm,
                arrivals: None,
                length: RunLength::DurationS(1.0),
                warmup_s: 0.0,
            },
        }],
        unavailable: Vec::new(),
        design: Design {
            profile: Profile::Smoke,
            blocks: 1,
            seed: 1,
            baseline: BTreeMap::new(),
            order: vec![vec![0]],
            metrics: true,
        },
    }
}

async fn preflight_error(engine: &EnginePlan, clients: u32) -> Error {
    engines::preflight(&plan(engine, clients)).await.unwrap_err()
}

async fn value(session: &mut dyn Session, sql: &str) -> String {
    session.query(sql).await.unwrap()[0][0].clone().unwrap()
}
