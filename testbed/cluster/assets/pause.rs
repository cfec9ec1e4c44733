//! The process that holds a pod's namespaces: it waits, reaps orphans of a shared pid namespace, and ends on a
//! request to terminate. Compiled on its own, without a standard library, so that the image is a few kilobytes.
#![no_std]
#![no_main]

use core::arch::asm;

const SIGINT: u64 = 2;
const SIGTERM: u64 = 15;
const SIGCHLD: u64 = 17;

const RT_SIGPROCMASK: usize = 14;
const EXIT: usize = 60;
const WAIT4: usize = 61;
const RT_SIGTIMEDWAIT: usize = 128;

const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
/// The kernel's signal set is one 64-bit word.
const SET_SIZE: usize = 8;

fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the Linux x86_64 convention: arguments in rdi, rsi, rdx and r10, result in rax; rcx and r11 are
    // overwritten. Every pointer passed below is to a live local or null where the kernel allows it.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
             in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    // Blocked signals wait for us instead of running a handler: no handler, no restorer, no race.
    let set: u64 = 1 << (SIGINT - 1) | 1 << (SIGTERM - 1) | 1 << (SIGCHLD - 1);
    let set_address = &raw const set as usize;
    syscall(RT_SIGPROCMASK, SIG_BLOCK, set_address, 0, SET_SIZE);
    loop {
        match syscall(RT_SIGTIMEDWAIT, set_address, 0, 0, SET_SIZE) as u64 {
            SIGINT | SIGTERM => {
                syscall(EXIT, 0, 0, 0, 0);
            }
            SIGCHLD => while syscall(WAIT4, usize::MAX, 0, WNOHANG, 0) > 0 {},
            _ => {}
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        syscall(EXIT, 1, 0, 0, 0);
    }
}
