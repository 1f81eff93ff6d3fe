//! Threads for slow work, at a lower priority than those that train.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

/// The nice value. When all cores are busy, these threads still get about a tenth of one.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// An async runtime on threads of low priority.
#[derive(Debug)]
pub(crate) struct Background(Option<Runtime>);

impl Background {
    pub(crate) fn start() -> io::Result<Self> {
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(1).enable_all().thread_name("background").on_thread_start(give_way);
        threads.build().map(|runtime| Self(Some(runtime)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.as_ref().expect("there until it is dropped").handle()
    }
}

impl Drop for Background {
    /// Does not wait, because an async task may drop this.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// On Linux, niceness is per thread.
fn give_way() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "cannot lower a thread's priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn its_threads_give_way_and_others_do_not() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        let background = Background::start().unwrap();
        let (task, blocking) = background.handle().block_on(async {
            let task = background.handle().spawn(async move { own() });
            (task.await.unwrap(), background.handle().spawn_blocking(own).await.unwrap())
        });
        let lower = (before + NICE).min(19);
        assert_eq!((task, blocking, own()), (lower, lower, before));
    }
}
