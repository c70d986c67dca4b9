//! Where trials live: this machine, or the Docker daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bedplate_core::error::Result;
use bedplate_core::plan::{EnginePlan, Plan, Provision, SiteKind, StoragePlan};
use bedplate_core::record::{Environment, TrialId};
use bedplate_core::seam::{Server, Site, Volume};

use crate::docker::DockerVolumes;
use crate::engines::{self, EngineContext};
use crate::ledger::Ledger;
use crate::storage::LocalVolumes;

/// The site of a plan, with a fresh ledger under `state_dir`.
///
/// # Errors
/// When the ledger cannot be opened, or there is no way to the Docker daemon that the plan needs.
pub fn site(plan: &Plan, state_dir: &Path) -> Result<Box<dyn Site>> {
    let ledger = Arc::new(Ledger::open(state_dir)?);
    let volumes = match plan.site {
        SiteKind::Local => Volumes::Local(LocalVolumes),
        SiteKind::Docker => Volumes::Docker(DockerVolumes::new(Arc::clone(&ledger))?),
    };
    Ok(Box::new(AnySite { ledger, work_dir: plan.work_dir.clone(), volumes }))
}

/// Both sites: they differ in who makes volumes.
struct AnySite {
    ledger: Arc<Ledger>,
    work_dir: PathBuf,
    volumes: Volumes,
}

/// Who makes volumes.
enum Volumes {
    /// This machine, with privileged commands run directly.
    Local(LocalVolumes),
    /// The machine of a Docker daemon, without sudo.
    Docker(DockerVolumes),
}

#[async_trait]
impl Site for AnySite {
    async fn preflight(&self, plan: &Plan) -> Result<()> {
        match &self.volumes {
            Volumes::Local(volumes) => volumes.preflight(plan)?,
            Volumes::Docker(volumes) => volumes.preflight(plan).await?,
        }
        engines::preflight(plan).await
    }

    async fn create_volume(&self, id: &TrialId, storage: &StoragePlan) -> Result<Box<dyn Volume>> {
        let (ledger, work_dir) = (&self.ledger, &self.work_dir);
        match &self.volumes {
            Volumes::Local(volumes) => volumes.create(ledger, id, storage, work_dir).await,
            Volumes::Docker(volumes) => volumes.create(ledger, id, storage, work_dir).await,
        }
    }

    async fn start_server(
        &self,
        id: &TrialId,
        engine: &EnginePlan,
        instances: u32,
        volume: &dyn Volume,
    ) -> Result<Box<dyn Server>> {
        let (ledger, work_dir) = (self.ledger.as_ref(), self.work_dir.as_path());
        let context = EngineContext { ledger, id, engine, instances, volume, work_dir };
        match engine.provision {
            Provision::Container { .. } => engines::container::start(&context).await,
            Provision::Process { .. } => engines::process::start(&context).await,
            Provision::Url { .. } => engines::url::start(&context).await,
        }
    }

    async fn tear_down(&self, id: &TrialId) -> Result<()> {
        self.ledger.undo_scope(&id.resource_name()).await
    }

    async fn environment(&self) -> Environment {
        crate::environment::environment(&self.work_dir).await
    }
}
