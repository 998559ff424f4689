//! `pillarbox config`: what a configuration may say.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use pillarbox_relay::config::REFERENCE;

use crate::error::Error;

/// Show what a configuration may say.
#[derive(Debug, ClapArgs)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    /// Prints a commented file with every setting and its default.
    #[arg(long, required = true)]
    reference: bool,
}

#[expect(clippy::unnecessary_wraps, reason = "as every subcommand")]
pub(crate) fn run(_args: &Args) -> Result<ExitCode, Error> {
    print!("{REFERENCE}");
    Ok(ExitCode::SUCCESS)
}
