//! Loops compiled for the vector instructions of the current processor.

/// Compiles `work` for wide vectors too, and runs the version for this processor. Both compute the same bits: the
/// compiler never fuses a multiplication with an addition, nor does it change the order of a sum.
///
/// Pass a closure marked `#[inline(always)]`, or it stays as narrow as the rest of the program.
#[inline(always)]
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has these instructions.
        #[allow(unsafe_code)]
        return unsafe { wide(work) };
    }
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn wide<R>(work: impl FnOnce() -> R) -> R {
    work()
}
