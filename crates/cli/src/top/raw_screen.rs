//! The terminal while a screen is drawn on it: keys are read as they are pressed, and the previous contents are
//! restored at the end, however the program ends.

use std::io::{self, Write};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Restores the terminal when it is dropped.
pub(super) struct RawScreen {
    before: Termios,
}

impl RawScreen {
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Self { before: before.clone() };
        // A panic message would vanish with the alternate screen, and be misaligned on a raw terminal.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave(&before);
            hook(panic);
        }));
        write(ENTER)?;
        Ok(screen)
    }
}

impl Drop for RawScreen {
    fn drop(&mut self) {
        leave(&self.before);
    }
}

fn leave(before: &Termios) {
    // A terminal that is gone needs no restoring.
    let _ = write(LEAVE);
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
}

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
