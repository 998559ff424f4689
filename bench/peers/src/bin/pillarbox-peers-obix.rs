use std::process::ExitCode;

fn main() -> ExitCode {
    pillarbox_peers::main()
}
