//! The Docker daemon: volumes, and the helper container that makes file systems without sudo.
//!
//! Everything goes through the daemon, so all of this also works for a user who is only in the
//! group `docker`, and for a remote `DOCKER_HOST`.

mod volumes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bedplate_core::error::{Error, Result};
use bollard::container::LogOutput;
use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, SystemInfo,
    VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptions, StartContainerOptions, WaitContainerOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::time::{Instant, sleep};

use crate::ledger::{Ledger, Resource};

pub use volumes::DockerVolumes;

/// The image with the file-system tools, which `bedplate images build storage-helper` makes. The
/// number is that of its recipe, `images/storage-helper`.
pub const STORAGE_HELPER_IMAGE: &str = "bedplate/storage-helper:1";

/// Label with the ledger's name on containers and volumes.
pub const OWNER_LABEL: &str = "bedplate.owner";
/// Label with the trial's name on containers and volumes.
pub const TRIAL_LABEL: &str = "bedplate.trial";

/// No request takes longer; the longest waits for an image file to be written.
const LONGEST_REQUEST: Duration = Duration::from_secs(4 * 3600);
/// How long the daemon has to let go of a volume or a container.
const LET_GO_WITHIN: Duration = Duration::from_secs(20);
/// How long the daemon may still be making what a dead process asked for.
const APPEARS_WITHIN: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(100);

const UNDO_SCRIPT: &str = include_str!("undo.sh");

/// A client of the daemon.
#[derive(Clone)]
pub struct Client(bollard::Docker);

/// A client of the daemon that `DOCKER_HOST` or the default socket leads to.
///
/// # Errors
/// When there is no way to a daemon; whether it answers is known with the first request.
pub fn client() -> Result<Client> {
    match bollard::Docker::connect_with_defaults() {
        Ok(docker) => Ok(Client(docker.with_timeout(LONGEST_REQUEST))),
        Err(error) => Err(unreachable(&error)),
    }
}

fn unreachable(error: &bollard::errors::Error) -> Error {
    Error::provision(format!("no docker daemon can be reached: {error}")).hint(
        "start the daemon (`systemctl start docker`) and be in the group `docker`, \
         or use `site = \"local\"`",
    )
}

/// What the daemon answered, as an error of ours.
fn refused(what: &str, error: &bollard::errors::Error) -> Error {
    match error {
        bollard::errors::Error::DockerResponseServerError { message, .. } => {
            Error::provision(format!("docker cannot {what}")).evidence(message.trim())
        }
        other => unreachable(other),
    }
}

fn status_of(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What the daemon can be asked to remove.
#[derive(Clone, Copy)]
enum Removable {
    Container,
    Volume,
}

/// A script to run in a helper container.
pub(crate) struct Helper<'a> {
    /// The trial it belongs to.
    pub(crate) trial: &'a str,
    /// Shell text; it runs with `-e` and `-u`.
    pub(crate) script: &'a str,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// Docker volumes and where they are mounted.
    pub(crate) volumes: Vec<(&'a str, &'static str)>,
}

/// What a helper said, and its exit status.
pub(crate) struct HelperOutput {
    pub(crate) status: i64,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl HelperOutput {
    /// The value of the line `key=…`.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        crate::command::value(&self.stdout, key)
    }

    /// The output, unless the script failed.
    pub(crate) fn success(self, what: &str) -> Result<Self> {
        if self.status == 0 {
            return Ok(self);
        }
        let text = format!("{}{}", self.stdout, self.stderr);
        Err(Error::provision(format!(
            "cannot {what}: the storage helper ended with {}",
            self.status
        ))
        .evidence(text.trim()))
    }
}

impl Client {
    /// The client of the underlying library.
    pub fn docker(&self) -> &bollard::Docker {
        &self.0
    }

    /// Facts of the daemon.
    pub(crate) async fn info(&self) -> Result<SystemInfo> {
        self.0.info().await.map_err(|error| unreachable(&error))
    }

    /// Whether the daemon has the image.
    ///
    /// # Errors
    /// When the daemon cannot be asked.
    pub async fn has_image(&self, image: &str) -> Result<bool> {
        match self.0.inspect_image(image).await {
            Ok(_) => Ok(true),
            Err(error) if status_of(&error) == Some(404) => Ok(false),
            Err(error) => Err(refused("inspect an image", &error)),
        }
    }

    /// Checks that the helper's image is there.
    pub(crate) async fn require_helper_image(&self) -> Result<()> {
        if self.has_image(STORAGE_HELPER_IMAGE).await? {
            return Ok(());
        }
        Err(Error::provision(format!("the image {STORAGE_HELPER_IMAGE} is not there"))
            .hint("bedplate images build storage-helper"))
    }

    /// Makes a named volume of the local driver; it is on the ledger before.
    pub(crate) async fn create_volume(
        &self,
        ledger: &Ledger,
        trial: &str,
        name: &str,
        options: &[(&str, String)],
    ) -> Result<()> {
        ledger.add(trial, Resource::DockerVolume { name: name.to_owned() })?;
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            driver: Some("local".to_owned()),
            driver_opts: Some(options.collect()),
            labels: Some(labels(ledger, trial)),
            ..VolumeCreateRequest::default()
        };
        match self.0.create_volume(request).await {
            Ok(_) => Ok(()),
            Err(error) => Err(refused("make a volume", &error)),
        }
    }

    /// Where the daemon keeps the volume; none when there is no such volume.
    pub(crate) async fn volume_mountpoint(&self, name: &str) -> Result<Option<String>> {
        match self.0.inspect_volume(name).await {
            Ok(volume) => Ok(Some(volume.mountpoint)),
            Err(error) if status_of(&error) == Some(404) => Ok(None),
            Err(error) => Err(refused("inspect a volume", &error)),
        }
    }

    /// Runs a script in a helper container, which is removed at once.
    ///
    /// The container has two capabilities more than any other (SYS_ADMIN to attach loop devices,
    /// MKNOD for their nodes), the loop devices, and no network.
    pub(crate) async fn help(&self, ledger: &Ledger, helper: Helper<'_>) -> Result<HelperOutput> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-helper-{nanos:x}-{number}", helper.trial);

        let mounts = helper.volumes.iter().map(|(volume, target)| Mount {
            typ: Some(MountType::VOLUME),
            source: Some((*volume).to_owned()),
            target: Some((*target).to_owned()),
            ..Mount::default()
        });
        let command = ["sh", "-euc", helper.script, "storage-helper"].map(str::to_owned);
        let body = ContainerCreateBody {
            image: Some(STORAGE_HELPER_IMAGE.to_owned()),
            cmd: Some(command.into_iter().chain(helper.arguments).collect()),
            labels: Some(labels(ledger, helper.trial)),
            host_config: Some(HostConfig {
                cap_add: Some(vec!["SYS_ADMIN".to_owned(), "MKNOD".to_owned()]),
                device_cgroup_rules: Some(vec!["b 7:* rmw".to_owned(), "c 10:237 rmw".to_owned()]),
                binds: Some(vec!["/dev:/dev".to_owned()]),
                mounts: Some(mounts.collect()),
                network_mode: Some("none".to_owned()),
                // The output is read from the log, so the log must be one that can be read.
                log_config: Some(HostConfigLogConfig {
                    typ: Some("json-file".to_owned()),
                    config: None,
                }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };

        let entry = ledger.add(helper.trial, Resource::Container { name: name.clone() })?;
        let result = self.run_container(&name, body).await;
        self.remove_container(&name).await?;
        ledger.done(entry)?;
        result
    }

    async fn run_container(&self, name: &str, body: ContainerCreateBody) -> Result<HelperOutput> {
        let failed = |error| refused("run the storage helper", &error);
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        self.0.create_container(Some(options), body).await.map_err(failed)?;
        self.0.start_container(name, None::<StartContainerOptions>).await.map_err(failed)?;

        let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
        let ended = self.0.wait_container(name, Some(options)).next().await;
        let status = match ended {
            Some(Ok(response)) => response.status_code,
            Some(Err(bollard::errors::Error::DockerContainerWaitError { code, .. })) => code,
            Some(Err(error)) => return Err(failed(error)),
            None => {
                return Err(Error::provision("docker did not say how the storage helper ended"));
            }
        };
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).build();
        let mut logs = std::pin::pin!(self.0.logs(name, Some(options)));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(chunk) = logs.next().await {
            match chunk.map_err(failed)? {
                LogOutput::StdErr { message } => err.extend_from_slice(&message),
                other => out.extend_from_slice(&other.into_bytes()),
            }
        }
        Ok(HelperOutput {
            status,
            stdout: String::from_utf8_lossy(&out).into_owned(),
            stderr: String::from_utf8_lossy(&err).into_owned(),
        })
    }

    /// Removes a container with its anonymous volumes and waits until it is gone.
    ///
    /// # Errors
    /// When it is still there after a while.
    pub async fn remove_container(&self, name: &str) -> Result<()> {
        self.until_gone(Removable::Container, name).await
    }

    /// Removes a volume and waits until it is gone.
    ///
    /// # Errors
    /// When it is still there after a while.
    pub async fn remove_volume(&self, name: &str) -> Result<()> {
        self.until_gone(Removable::Volume, name).await
    }

    /// Asks for a removal until the daemon has done it.
    ///
    /// A thing that is not there when first asked for may be about to appear: its maker may have
    /// died, or been interrupted, while the daemon was making it.
    async fn until_gone(&self, what: Removable, name: &str) -> Result<()> {
        let started = Instant::now();
        let mut seen = false;
        loop {
            let answer = match what {
                Removable::Container => {
                    let options = RemoveContainerOptionsBuilder::default().force(true).v(true);
                    self.0.remove_container(name, Some(options.build())).await
                }
                Removable::Volume => self.0.remove_volume(name, None::<RemoveVolumeOptions>).await,
            };
            match answer {
                Ok(()) => return Ok(()),
                Err(error) => match status_of(&error) {
                    Some(404) if seen || started.elapsed() >= APPEARS_WITHIN => return Ok(()),
                    Some(404) => {}
                    // In use, or being removed already.
                    Some(409 | 500) if started.elapsed() < LET_GO_WITHIN => seen = true,
                    _ => return Err(refused(&format!("remove {name}"), &error)),
                },
            }
            sleep(POLL).await;
        }
    }

    /// Detaches the loop devices of an image in a volume, and removes the image.
    pub(crate) async fn remove_loop_image(
        &self,
        ledger: &Ledger,
        volume: &str,
        name: &str,
    ) -> Result<()> {
        // Running the helper on a volume that is not there would make it.
        if self.volume_mountpoint(volume).await?.is_none() {
            return Ok(());
        }
        let helper = Helper {
            trial: volume,
            script: UNDO_SCRIPT,
            arguments: vec![format!("/backing/{name}")],
            volumes: vec![(volume, "/backing")],
        };
        self.require_helper_image().await?;
        self.help(ledger, helper).await?.success("detach a loop device").map(drop)
    }
}

fn labels(ledger: &Ledger, trial: &str) -> HashMap<String, String> {
    HashMap::from([
        (OWNER_LABEL.to_owned(), ledger.name()),
        (TRIAL_LABEL.to_owned(), trial.to_owned()),
    ])
}
