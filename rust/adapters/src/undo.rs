//! Undoing what a ledger names: the same code after success, an error, Ctrl-C and a kill.
//!
//! Every function here is idempotent: what is gone already is success. Nothing is touched that the
//! ledger does not name.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_core::error::{Error, Result};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::drivers::tls::ClientTls;
use crate::ledger::{Ledger, Resource};
use crate::storage::device;
use crate::{command, docker, mountinfo};

/// How long the kernel and other processes have to let go of a thing.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);
/// How long a server has to follow SIGQUIT.
const QUIT_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
/// The same for a pool, each look at which is a program of its own.
const POOL_POLL: Duration = Duration::from_millis(250);
/// Names of the programs of database servers, as the kernel has them.
const SERVERS: [&str; 4] = ["postgres", "postmaster", "mariadbd", "mysqld"];
/// Names of the programs that make their data directories.
const INSTALLERS: [&str; 3] = ["initdb", "mariadb-install-db", "mysql_install_db"];

/// Undoes one thing.
pub(crate) async fn undo(ledger: &Ledger, resource: &Resource) -> Result<()> {
    match resource {
        Resource::Container { name } => docker::client()?.remove_container(name).await,
        Resource::DockerVolume { name } => docker::client()?.remove_volume(name).await,
        Resource::Directory { path } => remove_directory(path).await,
        Resource::LoopImage { image } => remove_loop_image(ledger, image).await,
        Resource::Pool { name } => destroy_pool(ledger, name).await,
        Resource::Array { image } => stop_array(ledger, image).await,
        Resource::Device { path, id, file_system } => {
            device::release(ledger, path, id, file_system).await
        }
        Resource::DockerLoopImage { volume, name } => {
            docker::client()?.remove_loop_image(ledger, volume, name).await
        }
        Resource::Mount { path } => unmount(path).await,
        Resource::ServerProcess { data_dir } => stop_server(data_dir).await,
        Resource::Schema { url, schema, user, tls, tls_ca } => {
            let tls = ClientTls::new(*tls, tls_ca.as_deref())?;
            crate::engines::url::drop_schema(url, schema, user.as_deref(), tls).await
        }
    }
}

/// Removes a directory of ours with everything in it, unless something is mounted there.
async fn remove_directory(path: &Path) -> Result<()> {
    let refused =
        |why: &str| Err(Error::provision(format!("refusing to remove {}: {why}", path.display())));
    let ours = path.iter().any(|part| part.to_string_lossy().starts_with("bedplate-"));
    if !path.is_absolute() || !ours {
        return refused("its name is not one of ours");
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if metadata.is_dir() => {}
        _ => return refused("it is not a directory"),
    }
    let mounts = mountinfo::mounts()?;
    if let Some(mount) = mounts.iter().find(|mount| mount.mount_point.starts_with(path)) {
        return refused(&format!("{} is mounted", mount.mount_point.display()));
    }
    let (owned, shown) = (path.to_owned(), path.display().to_string());
    tokio::task::spawn_blocking(move || remove_tree(&owned))
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(|error| Error::provision(format!("cannot remove {shown}: {error}")))
}

/// Removes a tree, again if a process that was just killed still added something to it.
fn remove_tree(path: &Path) -> io::Result<()> {
    for _ in 0..3 {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return other,
        }
    }
    fs::remove_dir_all(path)
}

/// Unmounts everything that is mounted at `path`.
async fn unmount(path: &Path) -> Result<()> {
    let deadline = Instant::now() + LET_GO_WITHIN;
    while mountinfo::is_mount_point(path)? {
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::BUSY) if Instant::now() < deadline => sleep(POLL).await,
            Err(error) => {
                return Err(Error::provision(format!(
                    "cannot unmount {}: {error}",
                    path.display()
                ))
                .hint("end whatever uses it, then `bedplate clean`"));
            }
        }
    }
    Ok(())
}

/// The loop devices whose backing file is `image`.
pub(crate) fn loop_devices(image: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: io::Error| Error::provision(format!("cannot read /sys/block: {error}"));
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = backing.strip_suffix('\n').unwrap_or(&backing);
        let backing = backing.strip_suffix(" (deleted)").unwrap_or(backing);
        if Path::new(backing) == image {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(devices)
}

/// Detaches the loop devices of an image, and removes the image when the last is gone.
async fn remove_loop_image(ledger: &Ledger, image: &Path) -> Result<()> {
    let deadline = Instant::now() + LET_GO_WITHIN;
    let mut failure: Option<String> = None;
    loop {
        let devices = loop_devices(image)?;
        let Some(device) = devices.first() else { break };
        if Instant::now() >= deadline {
            let text = format!("{} is still attached to {}", image.display(), device.display());
            let error =
                Error::provision(text).hint("end whatever uses the device, then `bedplate clean`");
            return Err(match failure {
                Some(evidence) => error.evidence(evidence),
                None => error,
            });
        }
        // Detaching a device that is in use succeeds, and takes effect when its last user is gone.
        let argv = ["losetup".as_ref(), "-d".as_ref(), device.as_os_str()];
        if let Err(error) = command::run(ledger, &argv).await {
            failure = error.evidence;
        }
        if loop_devices(image)?.contains(device) {
            sleep(POLL).await;
        }
    }
    match fs::remove_file(image) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::provision(format!("cannot remove {}: {error}", image.display())))
        }
        _ => Ok(()),
    }
}

/// The arrays of md that the loop devices of an image are part of.
pub(crate) fn arrays_on(image: &Path) -> Result<Vec<PathBuf>> {
    let mut arrays = Vec::new();
    for device in loop_devices(image)? {
        let Some(name) = device.file_name() else { continue };
        let holders = Path::new("/sys/class/block").join(name).join("holders");
        let names = fs::read_dir(holders).into_iter().flatten().flatten();
        let names = names.map(|holder| holder.file_name());
        let of_md = names.filter(|name| name.to_string_lossy().starts_with("md"));
        arrays.extend(of_md.map(|name| Path::new("/dev").join(name)));
    }
    Ok(arrays)
}

/// Stops the arrays that an image of ours is part of.
async fn stop_array(ledger: &Ledger, image: &Path) -> Result<()> {
    let deadline = Instant::now() + LET_GO_WITHIN;
    while let Some(array) = arrays_on(image)?.first() {
        let argv = ["mdadm".as_ref(), "--stop".as_ref(), array.as_os_str()];
        if let Err(error) = command::run(ledger, &argv).await {
            if Instant::now() >= deadline {
                return Err(error.hint("end whatever uses the array, then `bedplate clean`"));
            }
            sleep(POLL).await;
        }
    }
    Ok(())
}

/// The pools that ZFS has imported.
async fn pools() -> Result<Vec<String>> {
    let listed = command::ask(&["zpool", "list", "-H", "-o", "name"]).await;
    let listed = listed.map_err(|error| {
        error.hint("start ZFS (`modprobe zfs`, or `zfs-fuse`), then `bedplate clean`")
    })?;
    Ok(listed.stdout.lines().map(str::to_owned).collect())
}

/// Destroys a pool of ours. Right after its last user ended, it can still be busy.
async fn destroy_pool(ledger: &Ledger, name: &str) -> Result<()> {
    if !name.starts_with("bedplate-") {
        let text = format!("refusing to destroy the pool {name}: its name is not one of ours");
        return Err(Error::provision(text));
    }
    let deadline = Instant::now() + LET_GO_WITHIN;
    while pools().await?.iter().any(|pool| pool == name) {
        if let Err(error) = command::run(ledger, &["zpool", "destroy", "-f", name]).await {
            if Instant::now() >= deadline {
                return Err(error.hint("end whatever uses the pool, then `bedplate clean`"));
            }
            sleep(POOL_POLL).await;
        }
    }
    Ok(())
}

/// Ends every server process in the data directory, and waits until the last is gone.
async fn stop_server(data_dir: &Path) -> Result<()> {
    let started = Instant::now();
    let mut signal = Signal::QUIT;
    let mut signalled: Vec<Pid> = Vec::new();
    loop {
        let processes = server_processes(data_dir)?;
        if processes.is_empty() {
            return Ok(());
        }
        if signal == Signal::QUIT && started.elapsed() > QUIT_WITHIN {
            signal = Signal::KILL;
            signalled.clear();
        }
        if started.elapsed() > QUIT_WITHIN + LET_GO_WITHIN {
            let text = format!("the server in {} cannot be ended", data_dir.display());
            return Err(Error::provision(text));
        }
        for pid in processes {
            if !signalled.contains(&pid) {
                // The process may have ended since it was listed.
                let _ended = kill_process(pid, signal);
                signalled.push(pid);
            }
        }
        sleep(POLL).await;
    }
}

/// Processes of a database server that work in `data_dir`, or are about to. A server changes into its data
/// directory before it does anything there, so this also finds one that has not written its pid file yet;
/// and what is still on its way to become one (`setpriv`, a shell) has both in its command.
fn server_processes(data_dir: &Path) -> Result<Vec<Pid>> {
    let failed = |error: io::Error| Error::provision(format!("cannot read /proc: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let proc = entry.path();
        let (Ok(cwd), Ok(name), Ok(command)) = (
            fs::read_link(proc.join("cwd")),
            fs::read_to_string(proc.join("comm")),
            fs::read(proc.join("cmdline")),
        ) else {
            continue;
        };
        let works = cwd == data_dir && SERVERS.contains(&name.trim_end());
        if works || will_serve(&command, data_dir) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// Whether a command line, as the kernel has it, is of a server or its installer in `data_dir`.
fn will_serve(command: &[u8], data_dir: &Path) -> bool {
    let words = || command.split(|byte| *byte == 0).map(|word| Path::new(OsStr::from_bytes(word)));
    let names_program = |word: &Path| {
        let name = word.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| SERVERS.contains(&name) || INSTALLERS.contains(&name))
    };
    let names_directory = |word: &Path| {
        let bytes = word.as_os_str().as_bytes();
        let directory = bytes.strip_prefix(b"--datadir=").unwrap_or(bytes);
        directory == data_dir.as_os_str().as_bytes()
    };
    words().any(names_program) && words().any(names_directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_will_be_a_server_is_known_by_its_command() {
        let at = Path::new("/work/bedplate-1/pgdata");
        let check = |words: &[&str]| will_serve(words.join("\0").as_bytes(), at);
        let start = ["sh", "-c", "cd / && exec \"$0\" \"$@\""];
        assert!(check(&[&start[..], &["/bin/postgres", "-D", "/work/bedplate-1/pgdata"]].concat()));
        assert!(check(&[
            "/bin/sh",
            "/bin/mariadb-install-db",
            "--datadir=/work/bedplate-1/pgdata"
        ]));
        // Those that look at it, and servers elsewhere.
        assert!(!check(&["du", "/work/bedplate-1/pgdata"]));
        assert!(!check(&["/bin/postgres", "-D", "/work/bedplate-1/pgdata2"]));
        assert!(!check(&["vi", "/work/bedplate-1/pgdata/postgres"]));
    }
}
