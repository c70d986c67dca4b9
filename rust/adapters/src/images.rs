//! Images: which are pinned, and making those that can be made here.
//!
//! The recipes are part of the program, so that an installed wheel can build them too.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bedplate_core::error::{Error, Result};
use bedplate_core::plan::{EngineKind, Pages};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::engines::container;
use crate::{command, docker};

/// Label with the hash of the recipe that an image was made from.
const RECIPE_LABEL: &str = "bedplate.recipe";

/// An image that can be made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// PostgreSQL 13 from Debian's packages, with the contract of the official image.
    Postgres13,
    /// PostgreSQL 13 from Debian's source package, with blocks of those sizes.
    PostgresPages(Pages),
    /// MariaDB 10.5 from Debian's packages, with the contract of the official image. It is not
    /// MariaDB 10.3, and stands in for it only where a spec allows another version.
    MariaDb105,
    /// The file-system tools that site `docker` runs.
    StorageHelper,
}

/// What became of an image that was to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltImage {
    /// Which.
    pub image: Image,
    /// Its reference.
    pub tag: String,
    /// Its id.
    pub id: String,
    /// How long the build took; absent when the image of this recipe was there already.
    pub built_in: Option<Duration>,
}

impl Image {
    /// All that are made unless others are named: those that every study may need.
    pub const ALL: [Self; 3] = [Self::Postgres13, Self::MariaDb105, Self::StorageHelper];

    /// Its name on the command line.
    pub fn name(self) -> String {
        match self {
            Self::Postgres13 => "postgres".into(),
            Self::PostgresPages(pages) => pages.image().replace("bedplate/postgres:13", "postgres"),
            Self::MariaDb105 => "mariadb".into(),
            Self::StorageHelper => "storage-helper".into(),
        }
    }

    /// One that can be made, by what `of` tells of it.
    fn find(of: impl Fn(Self) -> String, wanted: &str) -> Option<Self> {
        let sizes = || (0..=6).map(|power| 1024 << power);
        let pages = sizes().flat_map(|block_size_bytes| {
            sizes().map(move |wal_block_size_bytes| {
                Self::PostgresPages(Pages { block_size_bytes, wal_block_size_bytes })
            })
        });
        Self::ALL.into_iter().chain(pages).find(|image| of(*image) == wanted)
    }

    /// The image of that reference, if it can be made here.
    pub(crate) fn of_tag(tag: &str) -> Option<Self> {
        Self::find(Self::tag, tag)
    }

    /// The image of that name.
    ///
    /// # Errors
    /// When there is none; the error names all there are.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::find(Self::name, name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::spec(format!("there is no image `{name}`")).hint(format!(
                "one of: {names}; or with sizes of blocks, such as postgres-block-4kB-wal-8kB"
            ))
        })
    }

    /// The reference it gets.
    pub fn tag(self) -> String {
        match self {
            Self::Postgres13 => "bedplate/postgres:13".into(),
            Self::PostgresPages(pages) => pages.image(),
            Self::MariaDb105 => "bedplate/mariadb:10.5".into(),
            Self::StorageHelper => docker::STORAGE_HELPER_IMAGE.into(),
        }
    }

    /// The kind of database that is in it.
    pub fn engine(self) -> Option<EngineKind> {
        match self {
            Self::Postgres13 | Self::PostgresPages(_) => Some(EngineKind::Postgres),
            Self::MariaDb105 => Some(EngineKind::MariaDb),
            Self::StorageHelper => None,
        }
    }

    /// The version of the official image that is wanted in its place.
    pub(crate) fn stands_in_for(self) -> &'static str {
        match self {
            Self::Postgres13 => "13",
            Self::MariaDb105 => "10.3",
            Self::PostgresPages(_) | Self::StorageHelper => "",
        }
    }

    /// References of the official image that is wanted in its place.
    pub(crate) fn official(self) -> Vec<String> {
        let pins = self.engine().and_then(|kind| pins().remove(&kind));
        let references = pins.and_then(|mut pins| pins.remove(self.stands_in_for()));
        references.into_iter().flatten().filter(|reference| *reference != self.tag()).collect()
    }

    /// What has to be said of it, where it is not what one may take it for.
    fn caution(self) -> Option<&'static str> {
        match self {
            Self::MariaDb105 => Some(
                "it is MariaDB 10.5, not 10.3: a spec that asks for 10.3 gets it only with \
                 `allow_other_version = true`",
            ),
            Self::Postgres13 | Self::PostgresPages(_) | Self::StorageHelper => None,
        }
    }

    /// Name and text of the recipe's files; `build.sh` is the one that is run.
    fn recipe(self) -> &'static [(&'static str, &'static str)] {
        macro_rules! files {
            ($directory:literal: $($file:literal),*) => {
                &[$(($file, include_str!(concat!("../../../images/", $directory, "/", $file)))),*]
            };
        }
        match self {
            Self::Postgres13 => {
                files!("postgres": "build.sh", "Dockerfile", "docker-entrypoint.sh")
            }
            Self::PostgresPages(_) => files!(
                "postgres-pages": "build.sh", "Dockerfile", "compile.sh", "docker-entrypoint.sh"
            ),
            Self::MariaDb105 => {
                files!("mariadb": "build.sh", "Dockerfile", "docker-entrypoint.sh")
            }
            Self::StorageHelper => files!("storage-helper": "build.sh", "Dockerfile"),
        }
    }

    /// What a recipe is told beyond where to and under what name.
    fn sizes_kib(self) -> Vec<String> {
        match self {
            Self::PostgresPages(Pages { block_size_bytes, wal_block_size_bytes }) => {
                [block_size_bytes, wal_block_size_bytes].map(|it| (it / 1024).to_string()).into()
            }
            Self::Postgres13 | Self::MariaDb105 | Self::StorageHelper => Vec::new(),
        }
    }

    fn recipe_hash(self) -> String {
        let mut hash = Sha256::new();
        for (name, text) in self.recipe() {
            for part in [name, text] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part.as_bytes());
            }
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The pinned images of each kind of database: version to references, in the order in which they are
/// tried.
pub fn pins() -> BTreeMap<EngineKind, BTreeMap<String, Vec<String>>> {
    toml::from_str(include_str!("../../../images/pins.toml"))
        .expect("the pins file is part of the program and tested")
}

/// Whether the daemon has an image that was made from this program's recipe.
///
/// # Errors
/// When the daemon cannot be asked.
pub async fn is_current(image: Image) -> Result<bool> {
    Ok(current(image).await?.is_some())
}

/// The id of the image, if it was made from this program's recipe.
async fn current(image: Image) -> Result<Option<String>> {
    let client = docker::client()?;
    let tag = image.tag();
    if !client.has_image(&tag).await? {
        return Ok(None);
    }
    let inspected = client
        .docker()
        .inspect_image(&tag)
        .await
        .map_err(|error| Error::provision(format!("docker cannot inspect `{tag}`: {error}")))?;
    let hash = inspected
        .config
        .and_then(|config| config.labels)
        .and_then(|mut labels| labels.remove(RECIPE_LABEL));
    Ok((hash == Some(image.recipe_hash())).then_some(inspected.id.unwrap_or_default()))
}

/// Builds images from Debian's packages, through the mirror that this machine's apt uses. One that is
/// there already, made from the same recipe, is left as it is.
///
/// # Errors
/// When a tool is missing, the daemon does not answer or a recipe fails.
pub async fn build(which: &[Image], progress: &(dyn Fn(&str) + Sync)) -> Result<Vec<BuiltImage>> {
    let mut done = Vec::new();
    for &image in which {
        let tag = image.tag();
        if let Some(id) = current(image).await? {
            progress(&format!("image {tag} is there already"));
            done.push(BuiltImage { image, tag, id, built_in: None });
            continue;
        }
        for (tool, package) in [("docker", "docker.io"), ("mmdebstrap", "mmdebstrap")] {
            command::find_tool(tool).ok_or_else(|| {
                Error::provision(format!("`{tool}` is not installed"))
                    .hint(format!("apt-get install {package}"))
            })?;
        }
        let long = match image {
            Image::PostgresPages(_) => "source package (some minutes)",
            _ => "packages (a minute or two)",
        };
        progress(&format!("building image {tag} from Debian's {long}"));
        let started = Instant::now();
        build_one(image).await?;
        let id = current(image).await?.ok_or_else(|| {
            Error::provision(format!("image `{tag}` was built, but the daemon does not have it"))
        })?;
        let built_in = started.elapsed();
        progress(&format!("image {tag} built in {} s", built_in.as_secs()));
        if let Some(caution) = image.caution() {
            progress(&format!("image {tag}: {caution}"));
        }
        done.push(BuiltImage { image, tag, id, built_in: Some(built_in) });
    }
    Ok(done)
}

/// Gets images: those that are pinned are pulled, and what no registry gives is built.
///
/// # Errors
/// As [`build`].
pub async fn get(which: &[Image], progress: &(dyn Fn(&str) + Sync)) -> Result<()> {
    for &image in which {
        let official = image.official();
        if !official.is_empty() && container::preflight(&official).await.is_ok() {
            progress(&format!("image {} is here", official.join(" or ")));
        } else {
            build(&[image], progress).await?;
        }
    }
    Ok(())
}

async fn build_one(image: Image) -> Result<()> {
    let unwritable =
        |error: std::io::Error| Error::provision(format!("cannot write the recipe: {error}"));
    let directory =
        tempfile::Builder::new().prefix("bedplate-image-").tempdir().map_err(unwritable)?;
    let recipe = directory.path().join("recipe");
    let out = directory.path().join("out");
    std::fs::create_dir(&recipe).map_err(unwritable)?;
    std::fs::create_dir(&out).map_err(unwritable)?;
    for (name, text) in image.recipe() {
        std::fs::write(recipe.join(name), text).map_err(unwritable)?;
    }
    run_script(&recipe.join("build.sh"), &out, image).await?;
    label(image).await
}

/// Runs a recipe. Not through [`command`], which kills at once: what the script runs has mounts of its
/// own to take down, and gets a Ctrl-C of the terminal itself.
async fn run_script(script: &Path, out: &Path, image: Image) -> Result<()> {
    let tag = image.tag();
    let output = Command::new("bash")
        .arg(script)
        .arg(out)
        .arg(&tag)
        .args(image.sizes_kib())
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| Error::provision(format!("`bash` cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let lines: Vec<&str> = text.lines().collect();
    Err(Error::provision(format!("image `{tag}` could not be built: {}", output.status))
        .hint("the packages come through the mirror of this machine's apt; try `apt-get update`")
        .evidence(lines[lines.len().saturating_sub(20)..].join("\n")))
}

/// Writes the recipe's hash on the image that a recipe has made.
async fn label(image: Image) -> Result<()> {
    let failed =
        |error: std::io::Error| Error::provision(format!("`docker` cannot be run: {error}"));
    let mut child = Command::new("docker")
        .args(["build", "--quiet", "--tag", &image.tag()])
        .arg(format!("--label={RECIPE_LABEL}={}", image.recipe_hash()))
        .arg("-")
        .env("DOCKER_BUILDKIT", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(format!("FROM {}\n", image.tag()).as_bytes()).await.map_err(failed)?;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::provision(format!("image `{}` could not be labelled", image.tag()))
        .evidence(String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_is_by_digest_or_built_here() {
        let pins = pins();
        assert!(pins[&EngineKind::Postgres].contains_key("13"));
        assert!(pins[&EngineKind::MariaDb].contains_key("10.3"));
        let built = Image::ALL.map(Image::tag);
        for image in pins.values().flat_map(BTreeMap::values).flatten() {
            assert!(image.contains("@sha256:") || built.contains(image), "{image}");
        }
    }

    #[test]
    fn an_unknown_image_is_refused() {
        assert_eq!(Image::from_name("postgres"), Ok(Image::Postgres13));
        let pages = Pages { block_size_bytes: 4096, wal_block_size_bytes: 16384 };
        let image = Image::PostgresPages(pages);
        assert_eq!(Image::from_name("postgres-block-4kB-wal-16kB"), Ok(image));
        assert_eq!(Image::of_tag("bedplate/postgres:13-block-4kB-wal-16kB"), Some(image));
        assert_eq!(image.sizes_kib(), ["4", "16"]);
        let error = Image::from_name("mysql").unwrap_err();
        let hint = error.hint.unwrap();
        assert!(hint.starts_with("one of: postgres, mariadb, storage-helper; "), "{hint}");
    }

    #[test]
    fn what_is_not_the_version_asked_for_says_so() {
        let official = Image::MariaDb105.official();
        assert!(official[0].starts_with("mariadb:10.3.39@sha256:"), "{official:?}");
        // It is no pin of 10.3: only a spec that allows another version gets it.
        assert!(!pins()[&EngineKind::MariaDb]["10.3"].contains(&Image::MariaDb105.tag()));
        assert!(Image::MariaDb105.caution().unwrap().contains("not 10.3"));
        assert!(Image::Postgres13.official()[0].starts_with("postgres:13.23@sha256:"));
        assert_eq!(Image::StorageHelper.official(), [""; 0]);
    }

    #[test]
    fn recipes_differ() {
        let hashes = std::collections::BTreeSet::from(Image::ALL.map(Image::recipe_hash));
        assert_eq!(hashes.len(), Image::ALL.len());
    }
}
