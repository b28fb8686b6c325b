//! Failures, operations in flight and the host's services, with Rust types.

use std::ffi::CString;
use std::net::IpAddr;
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::abi;

/// A status, and one sentence: what failed, where, and what to do.
#[derive(Clone, Debug)]
pub struct Failure {
    pub status: i32,
    pub code: i64,
    pub peer: i32,
    pub text: String,
}

impl Failure {
    pub fn new(status: i32, text: impl Into<String>) -> Failure {
        Failure { status, code: 0, peer: -1, text: text.into() }
    }
    pub fn of_peer(peer: i32, text: impl Into<String>) -> Failure {
        Failure { status: abi::PEER_LOST, code: 0, peer, text: text.into() }
    }
    /// A failure caused by the machine.
    pub fn from_io(what: &str, error: &std::io::Error) -> Failure {
        let code = i64::from(error.raw_os_error().unwrap_or(0));
        Failure { status: abi::RESOURCE, code, peer: -1, text: format!("acme-id: {}: {}", what, error) }
    }

    /// # Safety
    /// `error` comes from the core.
    pub unsafe fn read(error: &abi::Error) -> Failure {
        let end = error.text.iter().position(|&byte| byte == 0).unwrap_or(error.text.len());
        let text = String::from_utf8_lossy(&error.text[..end]).into_owned();
        Failure { status: error.status, code: error.native_code, peer: error.peer_rank, text }
    }

    /// Fills in the caller's error struct, if not null, and returns the status.
    /// # Safety
    /// `error` is null or the caller's report.
    pub unsafe fn write(&self, error: *mut abi::Error) -> i32 {
        if let Some(error) = error.as_mut() {
            let mut end = self.text.len().min(error.text.len() - 1);
            while !self.text.is_char_boundary(end) {
                end -= 1;
            }
            error.status = self.status;
            error.native_code = self.code;
            error.peer_rank = self.peer;
            error.text[..end].copy_from_slice(&self.text.as_bytes()[..end]);
            error.text[end] = 0;
        }
        self.status
    }
}

/// Runs the body of a function that the core has called. Converts failures and panics to a status.
/// # Safety
/// `error` is null or the caller's report.
pub unsafe fn guarded(error: *mut abi::Error, body: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.write(error),
        Err(_) => Failure::new(abi::INTERNAL, "acme-id: a bug of this backend (a panic)").write(error),
    }
}

/// Locks a mutex, also one that a panic has poisoned.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// An operation in flight: its terminal state, set once.
#[derive(Default)]
pub struct Work {
    outcome: Mutex<Option<Result<(), Failure>>>,
    changed: Condvar,
}

impl Work {
    /// Sets the outcome; only the first one counts.
    pub fn settle(&self, outcome: Result<(), Failure>) {
        locked(&self.outcome).get_or_insert(outcome);
        self.changed.notify_all();
    }

    /// Waits up to `timeout_ns` (0: does not wait, negative: no limit). None: still in flight.
    pub fn wait(&self, timeout_ns: i64) -> Option<Result<(), Failure>> {
        let mut outcome = locked(&self.outcome);
        let deadline = deadline_in(timeout_ns);
        while outcome.is_none() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left == Duration::ZERO {
                break;
            }
            outcome = self.changed.wait_timeout(outcome, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
        outcome.clone()
    }
}

/// The time at which a timeout of the ABI ends; None: never.
pub fn deadline_in(timeout_ns: i64) -> Option<Instant> {
    u64::try_from(timeout_ns).ok().and_then(|ns| Instant::now().checked_add(Duration::from_nanos(ns)))
}

/// The host table. Valid until the agent's destroy has returned.
#[derive(Clone, Copy)]
pub struct Host(*const abi::Host);

// SAFETY: all its functions may be called from any thread.
unsafe impl Send for Host {}
unsafe impl Sync for Host {}

impl Host {
    /// # Safety
    /// `table` comes from bp_init.
    pub unsafe fn new(table: *const abi::Host) -> Host {
        Host(table)
    }

    pub fn abort_requested(&self) -> bool {
        // SAFETY: see the struct.
        unsafe { ((*self.0).abort_requested)((*self.0).ctx) != 0 }
    }

    /// The address from which this rank reaches the store; None if other hosts cannot reach it.
    pub fn store_address(&self) -> Option<IpAddr> {
        // SAFETY: the extension and its text are valid as long as the table.
        let text = unsafe {
            let network = ((*self.0).extension)((*self.0).ctx, abi::EXT_NETWORK.as_ptr().cast()).cast::<abi::Network>();
            network.as_ref().map(|network| text_of(network.store_address))
        };
        text?.parse().ok().filter(|address: &IpAddr| !address.is_loopback())
    }

    pub fn store_set(&self, key: &str, value: &[u8]) -> Result<(), Failure> {
        let key = key_of(key);
        let mut error = fresh_error();
        // SAFETY: the key and the value are valid during the call, which copies them.
        let status = unsafe {
            ((*self.0).store_set)((*self.0).ctx, key.as_ptr(), value.as_ptr().cast(), value.len() as u64, &mut error)
        };
        check(status, &error)
    }

    /// Waits for a value of at most 256 bytes, until the deadline or abort.
    pub fn store_get(&self, key: &str, deadline: Option<Instant>) -> Result<Vec<u8>, Failure> {
        let key = key_of(key);
        let mut error = fresh_error();
        let mut value = vec![0; 256];
        let mut size = 0;
        let timeout = deadline.map_or(-1, |at| {
            at.saturating_duration_since(Instant::now()).as_nanos().try_into().unwrap_or(i64::MAX)
        });
        // SAFETY: the buffer is 256 bytes long.
        let status = unsafe {
            let data = value.as_mut_ptr().cast();
            ((*self.0).store_get)((*self.0).ctx, key.as_ptr(), data, 256, &mut size, timeout, &mut error)
        };
        check(status, &error)?;
        value.truncate(size as usize);
        Ok(value)
    }
}

fn key_of(key: &str) -> CString {
    CString::new(key).unwrap_or_default()
}

fn fresh_error() -> abi::Error {
    abi::Error { struct_size: abi::size::<abi::Error>(), status: 0, native_code: 0, peer_rank: -1, reserved: 0, text: [0; 1024], group: [0; 64] }
}

fn check(status: i32, error: &abi::Error) -> Result<(), Failure> {
    if status == abi::OK {
        return Ok(());
    }
    // SAFETY: the core has filled it in.
    Err(Failure { status, ..unsafe { Failure::read(error) } })
}

/// A string of the core.
/// # Safety
/// `text` is a C string.
pub unsafe fn text_of(text: *const c_char) -> String {
    std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
}
