//! A process group: the state that the core's calls and the transport's thread share.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::abi;
use crate::matching::{Mailbox, Message, Receive};
use crate::support::{deadline_in, locked, Failure, Host, Work};
use crate::transport::{connect_all, frame_of, reserve, run, Outgoing, Start};

/// Messages that wait to be sent to one rank.
#[derive(Default)]
struct Outbox {
    queue: VecDeque<Outgoing>,
    sending: Option<Arc<Work>>, // the send of the message being written
    lost: Option<Failure>,
}

impl Outbox {
    fn fail(&mut self, why: &Failure) {
        for work in self.queue.drain(..).map(|outgoing| outgoing.work).chain(self.sending.take()) {
            work.settle(Err(why.clone()));
        }
    }
}

struct State {
    mailbox: Mailbox,
    outboxes: Vec<Outbox>,
    aborted: Option<Failure>,
    stopping: bool,
}

pub struct Shared {
    rank: i32,
    state: Mutex<State>,
    wake: UnixStream,
    woken: UnixStream, // kept open, so that a wake never writes to a closed pipe
}

impl Shared {
    fn wake(&self) {
        let _ = (&self.wake).write(&[1]); // if the pipe is full, the thread wakes anyway
    }
    /// Becomes readable when the thread must check its connections and messages again.
    pub fn woken(&self) -> &UnixStream {
        &self.woken
    }
    pub fn stopping(&self) -> bool {
        locked(&self.state).stopping
    }
    pub fn aborted(&self) -> bool {
        locked(&self.state).aborted.is_some()
    }
    pub fn deliver(&self, message: Message) {
        locked(&self.state).mailbox.deliver(message);
    }
    pub fn next_for(&self, peer: i32) -> Option<Outgoing> {
        let mut state = locked(&self.state);
        let outbox = &mut state.outboxes[peer as usize];
        let next = outbox.queue.pop_front();
        outbox.sending = next.as_ref().map(|outgoing| Arc::clone(&outgoing.work));
        next
    }
    /// A peer was lost.
    pub fn lose(&self, peer: i32, why: &Failure) {
        let mut state = locked(&self.state);
        let outbox = &mut state.outboxes[peer as usize];
        outbox.lost.get_or_insert(why.clone());
        outbox.fail(why);
        state.mailbox.lose(peer, why);
    }
    pub fn abort(&self, why: &Failure) {
        let mut state = locked(&self.state);
        if state.aborted.is_none() {
            state.aborted = Some(why.clone());
            state.mailbox.close(why);
            state.outboxes.iter_mut().for_each(|outbox| outbox.fail(why));
        }
        drop(state);
        self.wake();
    }
}

pub struct Group {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Group {
    /// Starts this rank's part. Waits for the other ranks.
    pub fn start(rank: i32, world_size: i32, host: Host, timeout_ns: i64, address: &str) -> Result<Group, Failure> {
        if rank < 0 || rank >= world_size {
            let text = format!("acme-id: rank {} is not in a world of {}", rank, world_size);
            return Err(Failure::new(abi::INVALID, text));
        }
        let links = connect_all(&Start { rank, world_size, host, deadline: deadline_in(timeout_ns) }, address)?;
        let cannot = |error| Failure::from_io("cannot start a thread", &error);
        let (wake, woken) = UnixStream::pair().map_err(cannot)?;
        wake.set_nonblocking(true).and(woken.set_nonblocking(true)).map_err(cannot)?;
        let state = State {
            mailbox: Mailbox::new(rank, world_size),
            outboxes: (0..world_size).map(|_| Outbox::default()).collect(),
            aborted: None,
            stopping: false,
        };
        let shared = Arc::new(Shared { rank, state: Mutex::new(state), wake, woken });
        let of_thread = Arc::clone(&shared);
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| run(&of_thread, links))).is_err() {
                of_thread.abort(&Failure::new(abi::INTERNAL, "acme-id: a bug of this backend (a panic)"));
            }
        };
        let blocked = SignalsBlocked::new();
        let thread = std::thread::Builder::new().spawn(body).map_err(cannot)?;
        drop(blocked);
        Ok(Group { shared, thread: Some(thread) })
    }

    /// Starts an operation. None: it is already done.
    /// # Safety
    /// The core has validated `op` and its buffers.
    pub unsafe fn submit(&self, op: &abi::Op) -> Result<Option<Arc<Work>>, Failure> {
        let work = Arc::new(Work::default());
        match op.kind {
            abi::SEND => self.send(op, &work)?,
            abi::RECV => {
                let capacity = op.output.count * abi::dtype_size(op.dtype);
                let (data, result) = (op.output.data, op.result);
                let receive =
                    Receive { source: op.peer, tag: op.tag, data, capacity, result, work: Arc::clone(&work) };
                locked(&self.shared.state).mailbox.post(receive);
            }
            _ => return Err(Failure::new(abi::UNSUPPORTED, "acme-id: only send and recv are native")),
        }
        match work.wait(0) {
            Some(outcome) => outcome.map(|_| None),
            None => Ok(Some(work)),
        }
    }

    unsafe fn send(&self, op: &abi::Op, work: &Arc<Work>) -> Result<(), Failure> {
        let size = (op.input.count * abi::dtype_size(op.dtype)) as usize;
        let data = if size == 0 { &[] } else { std::slice::from_raw_parts(op.input.data, size) };
        let to_self = op.peer == self.shared.rank;
        let frame = if to_self { Vec::new() } else { frame_of(op.tag, data)? };
        let mut state = locked(&self.shared.state);
        if let Some(why) = state.aborted.as_ref().or(state.outboxes[op.peer as usize].lost.as_ref()) {
            return Err(why.clone());
        }
        if to_self {
            let mut copy = Vec::new();
            reserve(&mut copy, data.len())?;
            copy.extend_from_slice(data);
            state.mailbox.deliver(Message { source: op.peer, tag: op.tag, data: copy });
            work.settle(Ok(()));
            return Ok(());
        }
        state.outboxes[op.peer as usize].queue.push_back(Outgoing { frame, work: Arc::clone(work) });
        drop(state);
        self.shared.wake();
        Ok(())
    }

    /// Ends an operation early. A message that is being written is still sent, from a copy.
    pub fn cancel(&self, work: &Arc<Work>) {
        let mut state = locked(&self.shared.state);
        state.mailbox.cancel(work);
        for outbox in &mut state.outboxes {
            outbox.queue.retain(|outgoing| !Arc::ptr_eq(&outgoing.work, work));
        }
        drop(state);
        work.settle(Err(Failure::new(abi::CANCELLED, "acme-id: cancelled by this rank"))); // unless it was done
    }

    pub fn abort(&self, why: &Failure) {
        self.shared.abort(why);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        locked(&self.shared.state).stopping = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // `start` catches its panics
        }
    }
}

/// While it lives, threads that are started block all signals.
struct SignalsBlocked(SignalSet);

#[repr(C, align(8))]
struct SignalSet([u8; 128]);
const SIG_SETMASK: i32 = 2;

extern "C" {
    fn pthread_sigmask(how: i32, set: *const SignalSet, before: *mut SignalSet) -> i32;
}

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        let mut before = SignalSet([0; 128]);
        // SAFETY: both sets are of glibc's size.
        unsafe { pthread_sigmask(SIG_SETMASK, &SignalSet([255; 128]), &mut before) };
        SignalsBlocked(before)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pthread_sigmask(SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
