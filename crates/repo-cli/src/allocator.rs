//! How the C library hands out memory: what the budget bounds must not pile up in its pools.

/// Lets all threads share two pools of memory. By default every thread gets one of its own, and each keeps some of the
/// large buffers that passed through it: together more than all that is ever in use at once.
pub fn be_frugal() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: the call only sets a number that later allocations look at; nothing else runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
