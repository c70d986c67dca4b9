//! `bedplate images`.

use bedplate_adapters::images::{BuiltImage, Image, build};
use bedplate_core::Result;

use crate::cli::say;

/// Builds the named images, or all, and says what became of each.
pub(crate) async fn build_named(names: &[String]) -> Result<()> {
    let which = if names.is_empty() {
        Image::ALL.to_vec()
    } else {
        names.iter().map(|name| Image::from_name(name)).collect::<Result<Vec<_>>>()?
    };
    for BuiltImage { tag, built_in, .. } in build(&which, &|line| say(line)).await? {
        match built_in {
            Some(length) => say(&format!("{tag}: built in {:.0} s", length.as_secs_f64())),
            None => say(&format!("{tag}: up to date")),
        }
    }
    Ok(())
}
