//! Volumes of the Docker daemon.
//!
//! A loop volume is two Docker volumes: a plain one that holds the image file, and one of the local
//! driver that the daemon mounts from the loop device into every container that uses it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{Ageing, FileSystem, LoopVolume, Plan, StorageKind, StoragePlan};
use bedplate_core::probe::{Probe, READ_BYTES, SYNC_BYTES, SYNCS, Seen, Syncs};
use bedplate_core::record::{Aged, TrialId, VolumeFacts};
use bedplate_core::seam::{Contents, Room, Volume, VolumeLocation};
use std::path::Path;
use std::sync::Arc;

use crate::capabilities::shares_kernel;
use crate::docker::{Client, Helper, HelperOutput, client};
use crate::ledger::{Ledger, Resource};
use crate::mountinfo::{self, Mount};
use crate::storage::{
    AGE_SCRIPT, CONTENTS_SCRIPT, ExistingVolume, FORGET_SCRIPT, LoopPlan, SLACK_BYTES,
    TMPFS_CAVEAT, age_arguments, aged, backing_caveat, cached_share, check_devices, check_size,
    check_tmpfs, chosen, contents, loop_caveats, storages,
};

const MAKE_SCRIPT: &str = include_str!("make.sh");
const FACTS_SCRIPT: &str = include_str!("facts.sh");
const SETTLE_SCRIPT: &str = include_str!("settle.sh");
const PROBE_SCRIPT: &str = include_str!("probe.pl");
/// What the names of image files begin with; a number and `.img` follow.
const IMAGE: &str = "volume";
/// Exit status of the make script when there is no room; it then tells how much there is.
const NO_ROOM: i64 = 71;

/// Makes volumes through the Docker daemon.
#[derive(Clone)]
pub struct DockerVolumes {
    client: Client,
    ledger: Arc<Ledger>,
}

impl DockerVolumes {
    /// Volumes of the daemon that `DOCKER_HOST` or the default socket leads to.
    ///
    /// The ledger is for the short-lived helpers that volumes need after they were made.
    ///
    /// # Errors
    /// When there is no way to a daemon.
    pub fn new(ledger: Arc<Ledger>) -> Result<Self> {
        Ok(Self { client: client()?, ledger })
    }

    /// Checks that every storage of the plan can be made here: daemon, helper image, room.
    ///
    /// # Errors
    /// The first thing that is missing, with the step that brings it.
    pub async fn preflight(&self, plan: &Plan) -> Result<()> {
        let storages = storages(plan);
        if storages.iter().all(|storage| storage.kind == StorageKind::Existing) {
            return Ok(());
        }
        let info = self.client.info().await?;
        self.client.require_helper_image().await?;
        let memory = info.mem_total.and_then(|bytes| u64::try_from(bytes).ok());
        for storage in &storages {
            check_tmpfs(storage, memory.unwrap_or(u64::MAX))?;
        }
        let loops: Vec<_> = storages
            .iter()
            .filter_map(|storage| Some((&storage.label, LoopPlan::of(&storage.kind)?)))
            .collect();
        if !loops.is_empty() {
            let helper = Helper {
                trial: "bedplate-preflight",
                script: "stat -f -c 'free_blocks=%a\nblock_bytes=%S' /",
                arguments: Vec::new(),
                volumes: Vec::new(),
            };
            let output = self.client.help(&self.ledger, helper).await?.success("run it")?;
            let number = |key| output.value(key).and_then(|value| value.parse::<u64>().ok());
            let free = number("free_blocks").zip(number("block_bytes")).map(|(n, size)| n * size);
            for (label, plan) in loops {
                check_size(label, plan, "docker's data directory", free.unwrap_or(u64::MAX))?;
            }
        }
        Ok(())
    }

    /// Makes the volume of a trial; every step is on the ledger before it is taken.
    ///
    /// # Errors
    /// When a step fails. What was made until then is on the ledger.
    pub async fn create(
        &self,
        ledger: &Ledger,
        id: &TrialId,
        storage: &StoragePlan,
        _work_dir: &Path,
    ) -> Result<Box<dyn Volume>> {
        let trial = id.resource_name();
        let shares_kernel = shares_kernel(&self.client.info().await?);
        let volume = |kind| DockerVolume {
            shares_kernel,
            client: self.client.clone(),
            ledger: Arc::clone(&self.ledger),
            name: trial.clone(),
            kind,
        };
        let volume = match &storage.kind {
            StorageKind::Existing => return Ok(Box::new(ExistingVolume)),
            StorageKind::Directory { .. } => {
                self.make_volume(ledger, &trial, &trial, &[]).await?;
                volume(Kind::Directory)
            }
            StorageKind::Tmpfs { size_bytes } => {
                let options = [
                    ("type", "tmpfs".to_owned()),
                    ("device", "tmpfs".to_owned()),
                    ("o", format!("size={size_bytes},mode=0755")),
                ];
                self.make_volume(ledger, &trial, &trial, &options).await?;
                volume(Kind::Tmpfs)
            }
            StorageKind::Zfs(_) => {
                return Err(Error::provision("zfs is not made at site docker")
                    .hint("set `site = \"local\"` and run as root"));
            }
            StorageKind::Loop(made) => {
                let plan = LoopPlan { volume: made };
                let made = self.make_loop(ledger, &trial, &storage.label, plan).await?;
                volume(Kind::Loop(Box::new(made)))
            }
        };
        // A mismatch is to be known before anything is measured on it.
        volume.facts().await?;
        Ok(Box::new(volume))
    }

    async fn make_volume(
        &self,
        ledger: &Ledger,
        trial: &str,
        name: &str,
        options: &[(&str, String)],
    ) -> Result<()> {
        // What exists already is not ours, and must not get onto the ledger.
        if self.client.volume_mountpoint(name).await?.is_some() {
            return Err(Error::provision(format!("a docker volume {name} exists already")));
        }
        self.client.create_volume(ledger, trial, name, options).await
    }

    async fn make_loop(
        &self,
        ledger: &Ledger,
        trial: &str,
        label: &str,
        plan: LoopPlan<'_>,
    ) -> Result<LoopDevices> {
        let backing = format!("{trial}-image");
        self.make_volume(ledger, trial, &backing, &[]).await?;
        let devices = &plan.volume.devices;
        for number in 0..devices.count {
            let name = format!("{IMAGE}{number}.img");
            let resource = Resource::DockerLoopImage { volume: backing.clone(), name };
            ledger.add(trial, resource)?;
        }

        let mut arguments = vec![
            format!("/backing/{IMAGE}"),
            devices.count.to_string(),
            devices.each_bytes().to_string(),
            devices.bytes().saturating_add(SLACK_BYTES).to_string(),
            devices.scheduler.clone(),
            devices.read_ahead_bytes.map_or(String::new(), |bytes| (bytes / 1024).to_string()),
        ];
        arguments.extend(plan.mkfs_command());
        let volumes = vec![(backing.as_str(), "/backing")];
        let helper = Helper { trial, script: MAKE_SCRIPT, arguments, volumes };
        let output = self.client.help(ledger, helper).await?;
        if output.status == NO_ROOM {
            let free = output.value("free").and_then(|free| free.parse().ok()).unwrap_or(0);
            check_size(label, plan, "docker's data directory", free)?;
        }
        let output = output.success(&format!("make storage `{label}`"))?;
        let told = |key: &str| {
            output.value(key).map(str::to_owned).ok_or_else(|| {
                Error::provision(format!("the storage helper did not tell its {key}"))
                    .evidence(output.stdout.trim())
            })
        };
        let made = LoopDevices {
            volume: plan.volume.clone(),
            backing,
            devices: told("loop_devices")?.split_whitespace().map(str::to_owned).collect(),
            mkfs_command: told("mkfs_command")?,
            mkfs_version: told("mkfs_version")?,
        };
        let mut options =
            vec![("type", plan.fs_type().to_owned()), ("device", made.devices[0].clone())];
        let mount_options = plan.mount_options(&made.devices);
        if !mount_options.is_empty() {
            options.push(("o", mount_options));
        }
        self.make_volume(ledger, trial, trial, &options).await?;
        if plan.volume.nodatacow {
            let helper = Helper {
                trial,
                script: "chattr +C /volume",
                arguments: Vec::new(),
                volumes: vec![(trial, "/volume")],
            };
            let output = self.client.help(ledger, helper).await?;
            output.success("set the attribute nodatacow")?;
        }
        Ok(made)
    }
}

struct DockerVolume {
    /// Whether the daemon's devices are those of this machine.
    shares_kernel: bool,
    client: Client,
    ledger: Arc<Ledger>,
    name: String,
    kind: Kind,
}

enum Kind {
    Directory,
    Tmpfs,
    Loop(Box<LoopDevices>),
}

struct LoopDevices {
    volume: LoopVolume,
    backing: String,
    devices: Vec<String>,
    mkfs_command: String,
    mkfs_version: String,
}

impl DockerVolume {
    async fn help(&self, script: &str, arguments: Vec<String>) -> Result<HelperOutput> {
        let mut volumes = vec![(self.name.as_str(), "/volume")];
        if let Kind::Loop(made) = &self.kind {
            volumes.push((made.backing.as_str(), "/backing"));
        }
        let helper = Helper { trial: &self.name, script, arguments, volumes };
        self.client.help(&self.ledger, helper).await?.success("look at the volume")
    }
}

#[async_trait]
impl Volume for DockerVolume {
    fn location(&self) -> VolumeLocation {
        VolumeLocation::DockerVolume(self.name.clone())
    }

    async fn facts(&self) -> Result<VolumeFacts> {
        let mut arguments = Vec::new();
        if let Kind::Loop(made) = &self.kind {
            arguments.push(format!("/backing/{IMAGE}"));
            arguments.extend(made.devices.iter().cloned());
        }
        let output = self.help(FACTS_SCRIPT, arguments).await?;
        let told = |key: &str| output.value(key).unwrap_or_default().to_owned();
        let mount = one_mount(&told("mountinfo"))?;
        let block_size = told("block_size_bytes");
        let mut facts = BTreeMap::from([
            ("fs_type".to_owned(), mount.fs_type.clone()),
            ("mount_options".to_owned(), mount.options.join(",")),
            ("block_size_bytes".to_owned(), block_size.clone()),
        ]);
        let mut put = |key: &str, value: String| facts.insert(key.to_owned(), value);
        match &self.kind {
            Kind::Directory => {
                put("backing_fs_type", mount.fs_type.clone());
                put("backing_mount_options", mount.options.join(","));
                let mut caveats: Vec<_> =
                    backing_caveat("the docker volume", &mount.fs_type).into_iter().collect();
                // The daemon's path within the file system is the path from its root when that file
                // system is the one mounted at `/`.
                let at = self.client.volume_mountpoint(&self.name).await?.unwrap_or_default();
                if mount.root == Path::new(&at) {
                    caveats.push(
                        "the docker volume shares its file system with the rest of the machine"
                            .to_owned(),
                    );
                }
                Ok(VolumeFacts { facts, caveats })
            }
            Kind::Tmpfs => Ok(VolumeFacts { facts, caveats: vec![TMPFS_CAVEAT.to_owned()] }),
            Kind::Loop(made) => {
                let names = made.devices.join(" ");
                let attached = told("attached");
                let attached: Vec<&str> = attached.split_whitespace().collect();
                if !made.devices.contains(&mount.source) || attached != made.devices {
                    return Err(Error::provision(format!(
                        "each of {names} is not the one device of its image, or none of them that \
                         of the volume {}",
                        self.name
                    ))
                    .evidence(output.stdout.trim()));
                }
                let backing = one_mount(&told("backing"))?;
                put("mkfs_version", made.mkfs_version.clone());
                put("mkfs_command", made.mkfs_command.clone());
                put("loop_device", names);
                for key in [
                    "image_bytes",
                    "image_allocated_bytes",
                    "loop_direct_io",
                    "loop_write_cache",
                    "loop_read_ahead_bytes",
                ] {
                    put(key, told(key));
                }
                put("loop_scheduler", chosen(&told("loop_scheduler")).to_owned());
                put("backing_fs_type", backing.fs_type);
                put("backing_mount_options", backing.options.join(","));
                if made.volume.file_system == FileSystem::Btrfs {
                    for key in ["data_profile", "metadata_profile", "nodatacow"] {
                        put(key, told(key));
                    }
                }
                LoopPlan { volume: &made.volume }.check(&facts)?;
                let mut facts = VolumeFacts { facts, caveats: Vec::new() };
                check_devices(&made.volume.devices, &facts)?;
                facts.caveats = loop_caveats(&made.volume.devices, &facts);
                Ok(facts)
            }
        }
    }

    fn devices(&self) -> Vec<Vec<String>> {
        match &self.kind {
            Kind::Loop(made) if self.shares_kernel => {
                let names = made.devices.iter().map(|device| device.trim_start_matches("/dev/"));
                vec![names.map(str::to_owned).collect()]
            }
            _ => Vec::new(),
        }
    }

    async fn room(&self) -> Option<Room> {
        let script =
            "stat -f -c 'blocks=%b\nleft_blocks=%f\nfree_blocks=%a\nblock_bytes=%S' /volume";
        let output = self.help(script, Vec::new()).await.ok()?;
        let number = |key: &str| output.value(key)?.parse::<u64>().ok();
        let block_bytes = number("block_bytes")?;
        Some(Room {
            bytes: number("blocks")? * block_bytes,
            used_bytes: number("blocks")?.saturating_sub(number("left_blocks")?) * block_bytes,
            free_bytes: number("free_blocks")? * block_bytes,
        })
    }

    async fn age(&self, ageing: Ageing, seed: u64) -> Result<Aged> {
        let mut arguments = vec![AGE_SCRIPT.to_owned(), "/volume".to_owned()];
        arguments.extend(age_arguments(ageing, seed));
        let output = self.help("perl -e \"$@\"", arguments).await?;
        aged(|key| output.value(key)).ok_or_else(|| {
            Error::provision("the storage helper did not tell what its ageing left")
                .evidence(output.stdout.trim())
        })
    }

    async fn probe(&self) -> Result<Option<Probe>> {
        let mut arguments =
            [u64::from(SYNCS), SYNC_BYTES as u64, READ_BYTES].map(|it| it.to_string()).to_vec();
        if let Kind::Loop(made) = &self.kind {
            arguments.extend(made.devices.iter().cloned());
        }
        let script = format!("perl - \"$@\" <<'PROBE'\n{PROBE_SCRIPT}PROBE\n");
        let output = self.help(&script, arguments).await?;
        let numbers = |key: &str| -> Option<Vec<f64>> {
            output.value(key)?.split_whitespace().map(|it| it.parse().ok()).collect()
        };
        let number = |key: &str| numbers(key)?.first().copied();
        let seen = |key: &str| {
            let (flushes, read_bytes) = output.value(key)?.split_once(' ')?;
            Some(Seen { flushes: flushes.parse().ok(), read_bytes: read_bytes.parse().ok()? })
        };
        let probe = || {
            Some(Probe {
                sync_us: Syncs::of(numbers("sync_us")?),
                devices: seen("devices"),
                backing: seen("backing"),
                cold_read_s: number("cold_read_s")?,
                warm_read_s: number("warm_read_s")?,
            })
        };
        probe().map(Some).ok_or_else(|| {
            Error::provision("the storage helper did not tell what it measured")
                .evidence(output.stdout.trim())
        })
    }

    async fn contents(&self) -> Contents {
        match self.help(CONTENTS_SCRIPT, vec!["/volume".to_owned()]).await {
            Ok(output) => contents(|key| output.value(key)),
            Err(_) => Contents::default(),
        }
    }

    async fn forget(&self) -> Result<Option<f64>> {
        let mut paths = vec!["/volume".to_owned()];
        if let Kind::Loop(_) = &self.kind {
            paths.push("/backing".to_owned());
        }
        let output = self.help(FORGET_SCRIPT, paths).await?;
        Ok(cached_share(|key| output.value(key)))
    }

    async fn settle(&self, at_most: Duration) -> Result<bool> {
        if matches!(self.kind, Kind::Tmpfs) {
            return Ok(true);
        }
        let mut arguments = vec![at_most.as_millis().to_string()];
        if let Kind::Loop(made) = &self.kind {
            arguments.extend(made.devices.iter().cloned());
        }
        let output = self.help(SETTLE_SCRIPT, arguments).await?;
        Ok(output.stdout.trim() == "idle")
    }
}

fn one_mount(line: &str) -> Result<Mount> {
    mountinfo::parse(line).pop().ok_or_else(|| {
        Error::provision("the storage helper did not tell how the volume is mounted").evidence(line)
    })
}
