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
    let work_dir = plan.work_dir.clone();
    Ok(match plan.site {
        SiteKind::Local => Box::new(LocalSite { ledger, work_dir, volumes: LocalVolumes }),
        SiteKind::Docker => {
            let volumes = DockerVolumes::new(Arc::clone(&ledger))?;
            Box::new(DockerSite { ledger, work_dir, volumes })
        }
    })
}

/// This machine, with privileged commands run directly.
pub struct LocalSite {
    ledger: Arc<Ledger>,
    work_dir: PathBuf,
    volumes: LocalVolumes,
}

/// The machine of a Docker daemon, without sudo.
pub struct DockerSite {
    ledger: Arc<Ledger>,
    work_dir: PathBuf,
    volumes: DockerVolumes,
}

#[async_trait]
impl Site for LocalSite {
    async fn preflight(&self, plan: &Plan) -> Result<()> {
        self.volumes.preflight(plan)?;
        engines::preflight(plan).await
    }

    async fn create_volume(&self, id: &TrialId, storage: &StoragePlan) -> Result<Box<dyn Volume>> {
        self.volumes.create(&self.ledger, id, storage, &self.work_dir).await
    }

    async fn start_server(
        &self,
        id: &TrialId,
        engine: &EnginePlan,
        volume: &dyn Volume,
    ) -> Result<Box<dyn Server>> {
        start(&self.ledger, id, engine, volume, &self.work_dir).await
    }

    async fn tear_down(&self, id: &TrialId) -> Result<()> {
        self.ledger.undo_scope(&id.resource_name()).await
    }

    async fn environment(&self) -> Environment {
        crate::environment::environment(&self.work_dir).await
    }
}

#[async_trait]
impl Site for DockerSite {
    async fn preflight(&self, plan: &Plan) -> Result<()> {
        self.volumes.preflight(plan).await?;
        engines::preflight(plan).await
    }

    async fn create_volume(&self, id: &TrialId, storage: &StoragePlan) -> Result<Box<dyn Volume>> {
        self.volumes.create(&self.ledger, id, storage, &self.work_dir).await
    }

    async fn start_server(
        &self,
        id: &TrialId,
        engine: &EnginePlan,
        volume: &dyn Volume,
    ) -> Result<Box<dyn Server>> {
        start(&self.ledger, id, engine, volume, &self.work_dir).await
    }

    async fn tear_down(&self, id: &TrialId) -> Result<()> {
        self.ledger.undo_scope(&id.resource_name()).await
    }

    async fn environment(&self) -> Environment {
        crate::environment::environment(&self.work_dir).await
    }
}

async fn start(
    ledger: &Ledger,
    id: &TrialId,
    engine: &EnginePlan,
    volume: &dyn Volume,
    work_dir: &Path,
) -> Result<Box<dyn Server>> {
    let context = EngineContext { ledger, id, engine, volume, work_dir };
    match engine.provision {
        Provision::Container { .. } => engines::container::start(&context).await,
        Provision::Process { .. } => engines::process::start(&context).await,
        Provision::Url { .. } => engines::url::start(&context).await,
    }
}
