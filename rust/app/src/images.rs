//! `bedplate images`.

use bedplate_adapters::images::{self, Image};
use bedplate_core::Result;

use crate::cli::say;

/// Pulls the named images, or all, and builds what no registry gives.
pub(crate) async fn get(names: &[String]) -> Result<()> {
    images::get(&named(names)?, &|line| say(line)).await
}

/// Builds the named images, or all.
pub(crate) async fn build(names: &[String]) -> Result<()> {
    images::build(&named(names)?, &|line| say(line)).await.map(drop)
}

fn named(names: &[String]) -> Result<Vec<Image>> {
    if names.is_empty() {
        return Ok(Image::ALL.to_vec());
    }
    names.iter().map(|name| Image::from_name(name)).collect()
}
