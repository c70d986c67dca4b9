//! Bedplate's core: what the program thinks. No input or output happens here.
//!
//! ```text
//! spec ──► plan ──► trials ──► samples ──► run directory ──► frames
//! ```
//!
//! A [`spec::Spec`] is what the user wrote, a [`plan::Plan`] is the same with every default filled.
//! [`run::execute`] turns a plan into trials through the seams in [`seam`], whose implementations
//! live in the adapters; what was measured goes to a [`seam::RunSink`].

pub mod capabilities;
pub mod check;
pub mod durability;
pub mod error;
mod fill;
pub mod gather;
mod jobs;
pub mod load;
mod measure;
pub mod plan;
pub mod probe;
pub mod record;
pub mod resolve;
pub mod rng;
pub mod run;
pub mod sampler;
pub mod script;
pub mod seam;
pub mod server_metrics;
pub mod sizing;
pub mod slap;
pub mod spec;
mod trial;
mod watch;
pub mod workload;

pub use error::{Error, ErrorKind, Result};
