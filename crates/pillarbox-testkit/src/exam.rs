//! What the exams of the smaller ports have in common.

use std::{future::Future, time::Duration};

/// Runs a case to its end; what the tests that the macros make are made of.
pub fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let patience = Duration::from_secs(90);
    runtime.expect("a runtime").block_on(async { tokio::time::timeout(patience, case).await.expect("an end") });
}

/// Makes a test of every case of an exam.
#[doc(hidden)]
#[macro_export]
macro_rules! exam {
    ($exam:ident, $place:ty: $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                if let Some(reason) = <$place as $crate::$exam::Place>::missing() {
                    eprintln!("left out: {reason}");
                    return;
                }
                $crate::exam::run($crate::$exam::$case::<$place>());
            }
        )+
    };
}
