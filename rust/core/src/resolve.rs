//! From spec to plan: fills every default and refuses, before anything is made, what cannot work.
//!
//! | key | default |
//! |---|---|
//! | `site` | `local` as root, otherwise `docker` when the daemon answers, otherwise `local`; `local` for provision `process` and `url` |
//! | `work_dir` | `work` in the state directory |
//! | `engine.version` | PostgreSQL `13`, MariaDB `10.3` |
//! | `engine.provision` | `container` when the daemon answers or the site is `docker`, otherwise `process` |
//! | `engine.shm_size` | 256 MiB |
//! | `engine.transport` | `unix`; for provision `url`, what the URL says |
//! | `engine.settings` | those of [`crate::check::durability`] are safe |
//! | `engine.settings_profile` | `stock`; `fs-tuned` adds what suits the storage, as `docs/spec.md` lists it |
//! | `engine.block_size`, `wal_block_size` | as the image or the binaries have them; 8 kB when only the other is given |
//! | `engine.tls` | `off` |
//! | `engine.locale`, `encoding`, `checksums` | PostgreSQL: `C`, `UTF8`, `false` |
//! | `storage.label` | the kind |
//! | `storage.size` | see [`crate::sizing`]; equal for all cells of one scale |
//! | `storage.path` | the work directory |
//! | `storage.block_size`, `mount_options` | 4096, `noatime` |
//! | `storage.scheduler`, `read_ahead` | `none`, the kernel's own |
//! | `storage.fullness`, `churn` | 0 percent, so that volumes are fresh; 2 |
//! | `storage.layout` | `single`; its devices are as few as a layout takes, but 3 for `raidz` |
//! | `workload.kind`, `scale`, `clients`, `protocol` | `tpcb`, 1, 1, `simple` |
//! | `workload.filler_random` | 0 percent, as pgbench |
//! | `workload.instances` | 1 |
//! | `workload.cache` | `warm` |
//! | `workload.threads` | as many as clients, at most one for every two CPUs over all instances |
//! | `workload.warmup`, `duration`; `design.blocks` | by profile: smoke 3 s, 10 s, 1; gate and calibrate 30 s, 90 s, 10; publish 300 s, 900 s, 10 |
//! | `design.profile`, `seed`, `metrics` | `smoke`, 20, `true` |

mod cells;
mod engine;
mod storage;

use std::collections::BTreeMap;
use std::path::PathBuf;

use cells::Cells;

use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::plan::{Design, PLAN_VERSION, Plan, Profile, SiteKind};
use crate::rng::SplitMix64;
use crate::spec::{DesignSpec, ProvisionKind, Spec, near_miss};

/// The seed of a design that names none.
pub const SEED: u64 = 20;
/// More trials than this are a slip of the pen.
const TRIALS_MAX: usize = 100_000;

/// The plan of a spec on a machine.
///
/// # Errors
/// A spec error for what was written, a provision error for what the machine lacks; nothing has
/// been made in either case.
pub fn plan(spec: &Spec, capabilities: &Capabilities) -> Result<Plan> {
    let site = site(spec, capabilities);
    let work_dir = match &spec.work_dir {
        Some(dir) => dir.clone(),
        None => capabilities.state_dir.join("work"),
    };
    let context = Context { spec, capabilities, site, work_dir };
    let cells = cells::cross(&context)?;
    let design = design(&spec.design, &cells)?;
    Ok(Plan {
        plan_version: PLAN_VERSION,
        name: spec.name.clone().unwrap_or_else(|| "unnamed".to_owned()),
        site,
        work_dir: context.work_dir,
        cells: cells.available,
        unavailable: cells.unavailable,
        design,
    })
}

/// What the parts of the resolution share.
struct Context<'a> {
    spec: &'a Spec,
    capabilities: &'a Capabilities,
    site: SiteKind,
    work_dir: PathBuf,
}

fn site(spec: &Spec, capabilities: &Capabilities) -> SiteKind {
    let uses_docker = |provision| matches!(provision, None | Some(ProvisionKind::Container));
    spec.site.unwrap_or_else(|| {
        let docker = !capabilities.root
            && capabilities.docker.is_available()
            && spec.engines.iter().all(|engine| uses_docker(engine.provision));
        if docker { SiteKind::Docker } else { SiteKind::Local }
    })
}

/// The levels that were written, or the default alone.
fn or_default<T: Clone>(levels: &[T], default: T) -> Vec<T> {
    if levels.is_empty() { vec![default] } else { levels.to_vec() }
}

/// What a profile stands for.
struct Lengths {
    warmup_s: f64,
    duration_s: f64,
    blocks: u32,
}

fn lengths(design: &DesignSpec) -> Lengths {
    match profile(design) {
        Profile::Smoke => Lengths { warmup_s: 3.0, duration_s: 10.0, blocks: 1 },
        Profile::Gate | Profile::Calibrate => {
            Lengths { warmup_s: 30.0, duration_s: 90.0, blocks: 10 }
        }
        Profile::Publish => Lengths { warmup_s: 300.0, duration_s: 900.0, blocks: 10 },
    }
}

fn profile(design: &DesignSpec) -> Profile {
    design.profile.unwrap_or(Profile::Smoke)
}

fn design(spec: &DesignSpec, cells: &Cells) -> Result<Design> {
    let blocks = spec.blocks.unwrap_or_else(|| lengths(spec).blocks);
    if blocks == 0 {
        return Err(Error::spec("`design.blocks` is 0, but must be at least 1"));
    }
    let count = cells.available.len();
    let trials = count.saturating_mul(blocks as usize);
    if trials > TRIALS_MAX {
        return Err(Error::spec(format!(
            "the spec has {count} cells and {blocks} blocks, more than {TRIALS_MAX} trials"
        ))
        .hint("shorten the lists of levels or lower `design.blocks`"));
    }
    check_baseline(&spec.baseline, cells)?;
    let seed = spec.seed.unwrap_or(SEED);
    let order = |block| SplitMix64::stream(seed, block).permutation(count);
    Ok(Design {
        profile: profile(spec),
        blocks,
        seed,
        baseline: spec.baseline.clone(),
        order: (0..u64::from(blocks)).map(order).collect(),
        metrics: spec.metrics.unwrap_or(true),
    })
}

fn check_baseline(baseline: &BTreeMap<String, String>, cells: &Cells) -> Result<()> {
    let available = cells.available.iter().map(|cell| &cell.levels);
    let unavailable = cells.unavailable.iter().map(|cell| &cell.levels);
    let all: Vec<&BTreeMap<String, String>> = available.chain(unavailable).collect();
    for (factor, level) in baseline {
        let mut factors: Vec<&str> =
            all.iter().flat_map(|levels| levels.keys()).map(String::as_str).collect();
        factors.sort_unstable();
        factors.dedup();
        if !factors.contains(&factor.as_str()) {
            let error = Error::spec(format!(
                "`design.baseline.{factor}` names no factor of this spec (allowed: {})",
                factors.join(", ")
            ));
            return Err(suggest(error, factor, &factors));
        }
        let mut levels: Vec<&str> = Vec::new();
        for known in all.iter().filter_map(|levels| levels.get(factor)) {
            if !levels.contains(&known.as_str()) {
                levels.push(known);
            }
        }
        if !levels.contains(&level.as_str()) {
            let error = Error::spec(format!(
                "`design.baseline.{factor}` is \"{level}\", which is not a level of `{factor}` \
                 (allowed: {})",
                levels.join(", ")
            ));
            return Err(suggest(error, level, &levels));
        }
    }
    let matches = |levels: &BTreeMap<String, String>| {
        baseline.iter().all(|(key, level)| levels.get(key) == Some(level))
    };
    if cells.available.iter().any(|cell| matches(&cell.levels)) {
        return Ok(());
    }
    match cells.unavailable.iter().find(|cell| matches(&cell.levels)) {
        Some(cell) => {
            let named: Vec<String> =
                baseline.iter().map(|(key, level)| format!("{key}={level}")).collect();
            Err(Error::provision(format!(
                "`design.baseline` is {}, which is not available here: {}",
                named.join(", "),
                cell.reason
            ))
            .hint(format!("name another level; for this one: {}", cell.remedy)))
        }
        None => Err(Error::spec("`design.baseline` names levels that no cell has together")),
    }
}

fn suggest(error: Error, written: &str, known: &[&str]) -> Error {
    match near_miss(written, known.iter().copied()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    }
}

#[cfg(test)]
mod tests;
