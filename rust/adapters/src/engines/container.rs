//! A server in a container, started with testcontainers.
//!
//! testcontainers creates and starts; waiting, reading and stopping go through the Docker daemon's
//! interface directly, so that the evidence of a failed start is at hand and so that nothing hangs on
//! a destructor. The container is removed by name, when its ledger entry is undone.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{Provision, TransportKind};
use bedplate_core::record::ServerFacts;
use bedplate_core::seam::{Address, Endpoint, Server, Session, VolumeLocation};
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::{ContainerState, PortBinding};
use bollard::query_parameters::{
    CreateImageOptions, InspectContainerOptions, LogsOptions, StartContainerOptions,
    StopContainerOptions,
};
use futures_util::StreamExt;
use testcontainers::core::{ContainerPort, Mount};
use testcontainers::runners::AsyncRunner;
use testcontainers::{GenericImage, ImageExt};

use super::{
    Access, EngineContext, Particulars, client_tls, database, make_socket_directory, not_ready,
    port, random_password, setting, socket_path, without_tls,
};
use crate::images::Image;
use crate::ledger::Resource;
use crate::mountinfo;

/// Where the host's directory for the Unix socket is mounted.
const SOCKET_DIRECTORY: &str = "/bedplate-socket";

/// How long a server may take to get ready.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a server that says that it is ready may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to shut down.
const STOP_TIMEOUT_S: i32 = 60;
/// How long a registry may take to give its first answer.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a pull may stand still.
const PULL_TIMEOUT: Duration = Duration::from_secs(120);
/// Open files that a server may have, where the machine allows so many.
const OPEN_FILES: u64 = 65_536;

/// An image that is present here.
struct ChosenImage {
    reference: String,
    id: String,
    repo_digests: Vec<String>,
}

/// Whether a missing image may be pulled.
#[derive(Clone, Copy, PartialEq)]
enum Pull {
    Allowed,
    Forbidden,
}

/// Checks that the Docker daemon answers and that an image is present, pulling it where need be.
pub(crate) async fn preflight(images: &[String]) -> Result<()> {
    let docker = docker().await?;
    choose_image(&docker, images, Pull::Allowed).await.map(|_| ())
}

/// A client of the Docker daemon that answers.
async fn docker() -> Result<Docker> {
    let unreachable = |cause: String| {
        Error::provision(format!("the Docker daemon does not answer: {cause}"))
            .hint("start it (`systemctl start docker`) and see `bedplate doctor`, or use `provision = \"process\"`")
    };
    let docker = crate::docker::client()?.docker().clone();
    docker.ping().await.map_err(|error| unreachable(error.to_string()))?;
    Ok(docker)
}

/// The first image, in the order of the plan, that is present or can be pulled.
async fn choose_image(docker: &Docker, images: &[String], pull: Pull) -> Result<ChosenImage> {
    let mut reasons = Vec::new();
    for reference in images {
        match inspect_image(docker, reference).await {
            Ok(image) => return Ok(image),
            Err(reason) if pull == Pull::Forbidden => {
                reasons.push(format!("{reference}: {reason}"));
                continue;
            }
            Err(_) => {}
        }
        match pull_image(docker, reference).await {
            Ok(()) => match inspect_image(docker, reference).await {
                Ok(image) => return Ok(image),
                Err(reason) => reasons.push(format!("{reference}: {reason}")),
            },
            Err(reason) => reasons.push(format!("{reference}: {reason}")),
        }
    }
    let names: Vec<String> = images.iter().map(|image| format!("`{image}`")).collect();
    Err(Error::provision(format!(
        "image {} cannot be had: {}",
        names.join(" or "),
        reasons.last().map_or("none is named", |reason| {
            reason.split_once(": ").map_or(reason.as_str(), |(_, reason)| reason)
        })
    ))
    .hint(remedy(images))
    .evidence(reasons.join("\n")))
}

/// What brings one of the images.
fn remedy(images: &[String]) -> String {
    if let Some(image) = images.iter().find_map(|wanted| Image::of_tag(wanted)) {
        return format!("bedplate images build {}", image.name());
    }
    match Image::ALL.into_iter().find(|image| image.official().iter().any(|i| images.contains(i))) {
        Some(image) => format!(
            "set `engine.allow_other_version = true` to have {} instead, which `bedplate images build \
             {}` makes, or name an image with `engine.image`",
            image.tag(),
            image.name()
        ),
        None => {
            "pull or build it, or leave `engine.image` out: then the pinned one is taken".into()
        }
    }
}

async fn inspect_image(
    docker: &Docker,
    reference: &str,
) -> std::result::Result<ChosenImage, String> {
    match docker.inspect_image(reference).await {
        Ok(image) => Ok(ChosenImage {
            reference: reference.to_owned(),
            id: image.id.unwrap_or_default(),
            repo_digests: image.repo_digests.unwrap_or_default(),
        }),
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
            Err("it is not present here".into())
        }
        Err(error) => Err(error.to_string()),
    }
}

async fn pull_image(docker: &Docker, reference: &str) -> std::result::Result<(), String> {
    let (name, tag) = split_reference(reference);
    let options =
        CreateImageOptions { from_image: Some(name), tag: Some(tag), ..Default::default() };
    let answers = docker.create_image(Some(options), None, None);
    futures_util::pin_mut!(answers);
    let mut patience = REGISTRY_TIMEOUT;
    loop {
        match tokio::time::timeout(patience, answers.next()).await {
            Err(_) => {
                return Err(format!("no answer from its registry for {} s", patience.as_secs()));
            }
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(error.to_string()),
            Ok(Some(Ok(_))) => patience = PULL_TIMEOUT,
        }
    }
}

/// Name and tag (or digest) as the daemon's interface wants them: a digest makes the tag void.
fn split_reference(reference: &str) -> (String, String) {
    if let Some((name, digest)) = reference.split_once('@') {
        return (split_tag(name).0.to_owned(), digest.to_owned());
    }
    let (name, tag) = split_tag(reference);
    (name.to_owned(), tag.unwrap_or("latest").to_owned())
}

fn split_tag(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(':') {
        // A colon before a slash belongs to the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    }
}

/// Starts a container with a fresh server and waits until it accepts connections.
///
/// # Errors
/// When the image cannot be had, the daemon refuses, or the server does not get ready; the last lines
/// of its log are the evidence.
pub async fn start(ctx: &EngineContext<'_>) -> Result<Box<dyn Server>> {
    let Provision::Container { images, shm_size_bytes, memory_bytes, cpus } = &ctx.engine.provision
    else {
        return Err(Error::spec("`engine.provision` is not `container`"));
    };
    let docker = docker().await?;
    // The check before the run has pulled what could be pulled.
    let image = match choose_image(&docker, images, Pull::Forbidden).await {
        Ok(image) => image,
        Err(_) => choose_image(&docker, images, Pull::Allowed).await?,
    };

    let name = ctx.id.resource_name();
    let port = port(ctx.engine)?;
    let password = random_password()?;
    let database = database(ctx.engine.kind);
    let about = database.particulars();
    let tls = client_tls(ctx.engine)?;
    let mut mounts = vec![match ctx.volume.location() {
        VolumeLocation::Path(path) => {
            Mount::bind_mount(path.display().to_string(), about.mount_point)
        }
        VolumeLocation::DockerVolume(volume) => Mount::volume_mount(volume, about.mount_point),
        VolumeLocation::Existing => {
            return Err(Error::spec("a container needs a storage of its own, not `existing`"));
        }
    }];
    let mut socket = None;
    if ctx.engine.transport == TransportKind::Unix {
        let directory = make_socket_directory(ctx)?;
        socket = Some(socket_path(database, &directory, port)?);
        mounts.push(Mount::bind_mount(directory.display().to_string(), SOCKET_DIRECTORY));
    }
    let sockets = socket.is_some().then_some(SOCKET_DIRECTORY);
    let recipe = database.container(ctx.engine, &password, port, sockets);

    // Published ports are bound to the loopback interface only; a Unix socket publishes none.
    let bindings: HashMap<String, Option<Vec<PortBinding>>> = match ctx.engine.transport {
        TransportKind::Unix => HashMap::new(),
        TransportKind::Tcp => HashMap::from([(
            format!("{port}/tcp"),
            Some(vec![PortBinding {
                host_ip: Some("127.0.0.1".into()),
                // Empty means: a free one.
                host_port: Some(match setting(ctx.engine, "port") {
                    Some(_) => port.to_string(),
                    None => String::new(),
                }),
            }]),
        )]),
    };
    let memory = memory_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let nano_cpus = cpus.map(|cpus| (cpus * 1e9) as i64);
    let open_files = open_files();

    // By id, so that what was looked at is what runs and nothing is fetched behind our back.
    let (repository, tag) = match image.id.split_once(':') {
        Some((algorithm, digest)) => (algorithm.to_owned(), digest.to_owned()),
        None => (image.id.clone(), "latest".to_owned()),
    };
    let mut request = GenericImage::new(repository, tag)
        .with_exposed_port(ContainerPort::Tcp(port))
        .with_cmd(recipe.command)
        .with_container_name(&name)
        .with_label(crate::docker::OWNER_LABEL, ctx.ledger.name())
        .with_label(crate::docker::TRIAL_LABEL, &name)
        .with_shm_size(*shm_size_bytes)
        .with_ulimit("nofile", open_files, Some(open_files))
        .with_startup_timeout(STARTUP_TIMEOUT)
        .with_host_config_modifier(move |host| {
            host.publish_all_ports = Some(false);
            host.port_bindings = Some(bindings.clone());
            host.memory = memory;
            host.memory_swap = memory;
            host.nano_cpus = nano_cpus;
        });
    for mount in mounts {
        request = request.with_mount(mount);
    }
    for (name, value) in recipe.environment {
        request = request.with_env_var(name, value);
    }

    ctx.ledger.add(&name, Resource::Container { name: name.clone() })?;
    let container = request.start().await.map_err(|error| {
        Error::provision(format!(
            "the container of image `{}` does not start: {error}",
            image.reference
        ))
    })?;
    let id = container.id().to_owned();
    // Its destructor would remove the container behind the ledger's back; what is forgotten here is
    // a client and a few strings.
    std::mem::forget(container);

    let mut server = ContainerServer {
        docker,
        access: Access::new(
            database,
            Endpoint {
                address: Address::Unix(socket.clone().unwrap_or_default()),
                user: about.superuser.into(),
                password,
                database: about.database.into(),
                session_settings: Vec::new(),
            },
            tls,
        ),
        provenance: BTreeMap::from([
            ("provision".into(), "container".into()),
            ("image".into(), image.reference),
            ("image_id".into(), image.id),
            ("image_repo_digests".into(), image.repo_digests.join(" ")),
            ("container_id".into(), id.clone()),
            ("data_directory".into(), about.data_in_container()),
        ]),
        id,
        port: socket.is_none().then_some(port),
    };
    server.wait_until_ready(&recipe.ready).await?;
    server.find_port().await?;
    // The log line is the server's word; this is the proof, through the socket or port that clients use.
    server.connect_within(CONNECT_TIMEOUT).await?;
    server.access.make_instances(ctx).await?;
    Ok(Box::new(server))
}

/// The open files to ask for: the daemon refuses more than the machine's hard limit.
fn open_files() -> i64 {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    hard.map_or(OPEN_FILES, |hard| hard.min(OPEN_FILES)) as i64
}

struct ContainerServer {
    docker: Docker,
    id: String,
    access: Access,
    provenance: BTreeMap<String, String>,
    /// The server's own port, where it is reached by one.
    port: Option<u16>,
}

impl ContainerServer {
    fn about(&self) -> &'static Particulars {
        self.access.database.particulars()
    }

    /// Waits until the server's standard error has the text that says so.
    async fn wait_until_ready(&self, ready: &str) -> Result<()> {
        let watching = async {
            let lines = self.docker.logs(
                &self.id,
                Some(LogsOptions { follow: true, stderr: true, ..Default::default() }),
            );
            futures_util::pin_mut!(lines);
            let mut seen = String::new();
            while let Some(Ok(line)) = lines.next().await {
                if let LogOutput::StdErr { message } = line {
                    seen.push_str(&String::from_utf8_lossy(&message));
                    if seen.contains(ready) {
                        return true;
                    }
                }
            }
            false
        };
        match tokio::time::timeout(STARTUP_TIMEOUT, watching).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let how = self.ended().await.unwrap_or_else(|| "stopped logging".into());
                let log = self.log().await.unwrap_or_default();
                Err(not_ready(format!("the server {how} before it was ready"), &log))
            }
            Err(_) => {
                let log = self.log().await.unwrap_or_default();
                let seconds = STARTUP_TIMEOUT.as_secs();
                Err(not_ready(format!("the server was not ready within {seconds} s"), &log))
            }
        }
    }

    async fn connect_within(&self, patience: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            match self.access.session().await {
                Ok(_) => return Ok(()),
                Err(error)
                    if tokio::time::Instant::now() >= deadline || self.ended().await.is_some() =>
                {
                    let log = self.log().await.unwrap_or_default();
                    return Err(not_ready(error.message, &log));
                }
                Err(error) if self.access.lacks_tls().await => return Err(without_tls(error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Has clients use the host's port that the daemon chose; each start may have another.
    async fn find_port(&mut self) -> Result<()> {
        if let Some(port) = self.port {
            let address = Address::Tcp("127.0.0.1".into(), self.published(port).await?);
            let Access { endpoint, instances, .. } = &mut self.access;
            for endpoint in std::iter::once(endpoint).chain(instances) {
                endpoint.address = address.clone();
            }
        }
        Ok(())
    }

    /// The host's port that is bound to the server's.
    async fn published(&self, port: u16) -> Result<u16> {
        let container = self
            .docker
            .inspect_container(&self.id, None::<InspectContainerOptions>)
            .await
            .map_err(|error| docker_failed("inspect the container", &error))?;
        container
            .network_settings
            .and_then(|network| network.ports)
            .and_then(|mut ports| ports.remove(&format!("{port}/tcp")).flatten())
            .and_then(|bindings| bindings.into_iter().find_map(|binding| binding.host_port))
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| Error::provision(format!("the container publishes no port for {port}")))
    }

    async fn state(&self) -> std::result::Result<ContainerState, bollard::errors::Error> {
        let container =
            self.docker.inspect_container(&self.id, None::<InspectContainerOptions>).await?;
        Ok(container.state.unwrap_or_default())
    }

    /// Output of a command run inside the container.
    async fn output_of(&self, command: &[&str]) -> Result<String> {
        let failed =
            |error: bollard::errors::Error| docker_failed("run a command in the container", &error);
        let exec = self
            .docker
            .create_exec(
                &self.id,
                CreateExecOptions {
                    attach_stdout: Some(true),
                    cmd: Some(command.to_vec()),
                    ..Default::default()
                },
            )
            .await
            .map_err(failed)?;
        let mut text = String::new();
        if let StartExecResults::Attached { mut output, .. } =
            self.docker.start_exec(&exec.id, None).await.map_err(failed)?
        {
            while let Some(chunk) = output.next().await {
                text.push_str(&String::from_utf8_lossy(&chunk.map_err(failed)?.into_bytes()));
            }
        }
        Ok(text)
    }
}

fn docker_failed(what: &str, error: &bollard::errors::Error) -> Error {
    Error::provision(format!("the Docker daemon could not {what}: {error}"))
}

/// How a container that does not run ended.
fn ending(state: &ContainerState) -> Option<String> {
    if state.running == Some(true) {
        return None;
    }
    let mut how = format!("exited with status {}", state.exit_code.unwrap_or(-1));
    if state.oom_killed == Some(true) {
        how.push_str(", out of memory");
    }
    Some(how)
}

#[async_trait]
impl Server for ContainerServer {
    fn endpoint(&self) -> &Endpoint {
        &self.access.endpoint
    }

    async fn facts(&self) -> Result<ServerFacts> {
        let mut facts = self.access.facts(&self.provenance).await?;
        let mounts = self.output_of(&["cat", "/proc/self/mountinfo"]).await?;
        let mounts = mountinfo::parse(&mounts);
        let data_dir = self.about().data_in_container();
        facts.data_mount =
            mountinfo::holding(&mounts, Path::new(&data_dir)).map(mountinfo::Mount::facts);
        Ok(facts)
    }

    fn instances(&self) -> &[Endpoint] {
        self.access.instances()
    }

    async fn session(&self, endpoint: &Endpoint) -> Result<Box<dyn Session>> {
        self.access.session_at(endpoint).await
    }

    async fn process(&self) -> Option<u32> {
        let pid = u32::try_from(self.state().await.ok()?.pid?).ok()?;
        // The daemon may run on another kernel, where the number means another process.
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        groups.contains(&self.id).then_some(pid)
    }

    async fn ended(&self) -> Option<String> {
        match self.state().await {
            Ok(state) => ending(&state),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                Some("is gone: its container was removed".into())
            }
            Err(error) => Some(format!("cannot be asked for: {error}")),
        }
    }

    async fn log(&self) -> Result<String> {
        let options = LogsOptions { stdout: true, stderr: true, ..Default::default() };
        let lines = self.docker.logs(&self.id, Some(options));
        futures_util::pin_mut!(lines);
        let mut log = String::new();
        while let Some(line) = lines.next().await {
            let line = line.map_err(|error| docker_failed("read the server's log", &error))?;
            log.push_str(&String::from_utf8_lossy(&line.into_bytes()));
        }
        Ok(log)
    }

    async fn stop(&self) -> Result<()> {
        if self.ended().await.is_some() {
            return Ok(());
        }
        let signal = Some(self.about().stop_name.to_owned());
        let options = StopContainerOptions { signal, t: Some(STOP_TIMEOUT_S) };
        match self.docker.stop_container(&self.id, Some(options)).await {
            Ok(())
            | Err(bollard::errors::Error::DockerResponseServerError { status_code: 304, .. }) => {}
            Err(error) => return Err(docker_failed("stop the server", &error)),
        }
        let state = self.state().await.map_err(|error| docker_failed("stop the server", &error))?;
        match state.exit_code {
            Some(0) => Ok(()),
            _ => {
                let how = ending(&state).unwrap_or_else(|| "still runs".into());
                let log = self.log().await.unwrap_or_default();
                Err(not_ready(format!("the server did not shut down in order: it {how}"), &log))
            }
        }
    }

    async fn start_again(&mut self) -> Result<()> {
        self.docker
            .start_container(&self.id, None::<StartContainerOptions>)
            .await
            .map_err(|error| docker_failed("start the server again", &error))?;
        self.find_port().await?;
        self.connect_within(STARTUP_TIMEOUT).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_split_as_the_daemon_wants_them() {
        for (reference, name, tag) in [
            ("postgres", "postgres", "latest"),
            ("bedplate/postgres:13", "bedplate/postgres", "13"),
            ("postgres:13.23@sha256:46", "postgres", "sha256:46"),
            ("postgres@sha256:46", "postgres", "sha256:46"),
            ("localhost:5000/postgres", "localhost:5000/postgres", "latest"),
            ("localhost:5000/postgres:13", "localhost:5000/postgres", "13"),
        ] {
            assert_eq!(split_reference(reference), (name.into(), tag.into()));
        }
    }

    #[test]
    fn a_missing_image_has_a_remedy() {
        let remedy =
            |images: &[&str]| remedy(&images.iter().map(|i| (*i).to_owned()).collect::<Vec<_>>());
        let official = &Image::MariaDb105.official()[0];
        assert_eq!(remedy(&["x", "bedplate/postgres:13"]), "bedplate images build postgres");
        assert_eq!(remedy(&[official, "bedplate/mariadb:10.5"]), "bedplate images build mariadb");
        assert_eq!(
            remedy(&["bedplate/postgres:13-block-1kB-wal-8kB"]),
            "bedplate images build postgres-block-1kB-wal-8kB"
        );
        assert!(remedy(&[official]).contains("allow_other_version"));
        assert!(remedy(&["mine"]).contains("leave `engine.image` out"));
    }

    #[test]
    fn an_ending_names_its_cause() {
        let state = |running, oom| ContainerState {
            running: Some(running),
            exit_code: Some(137),
            oom_killed: Some(oom),
            ..Default::default()
        };
        assert_eq!(ending(&state(true, false)), None);
        assert_eq!(ending(&state(false, true)).unwrap(), "exited with status 137, out of memory");
    }
}
