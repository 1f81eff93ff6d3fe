//! Child processes that do not outlive this one, whatever ends it.

use std::process::Command;

use rustix::process::Signal;

/// Makes the kernel send a child this signal when this process dies, where the kernel supports that. The child must be
/// started on the main thread: it is tied to the thread that created it.
#[allow(unsafe_code)]
pub(crate) fn tie(command: &mut Command, signal: Signal) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;

        let parent = rustix::process::getpid();
        let prepare = move || {
            rustix::process::set_parent_process_death_signal(Some(signal))?;
            // The parent may have died before the call above.
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                false => Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: between fork and exec only system calls are made; nothing is allocated and no lock is taken.
        unsafe { command.pre_exec(prepare) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (command, signal);
}
