//! How the C library hands out memory: what the budget bounds must not pile up in its pools.

/// From this size on, a buffer has its memory from the kernel, and gives it back when it is freed. What is read from a
/// store at once is smaller, so that its pages are used again and again: fresh ones cost more than what is done with
/// them.
const LARGE: libc::c_int = 5 << 20;
/// So much may lie idle at the end of a pool.
const IDLE: libc::c_int = 64 << 20;

/// Lets all threads share two pools of memory. By default every thread gets one of its own, and each keeps some of the
/// large buffers that passed through it: together more than all that is ever in use at once. Large buffers stay out of
/// the pools altogether; by default they would be part of them once one was freed.
///
/// To be called before the first thread is started; it has an effect with the GNU C library only.
pub fn be_frugal() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: the calls only set numbers that later allocations look at; nothing else runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, IDLE);
    }
}
