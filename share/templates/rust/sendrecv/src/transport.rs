//! The connections of a group and the thread that reads and writes them. Replace this file with your transport.
//!
//! Each rank listens at an address of this host and publishes it in the store with a secret; it connects to the ranks
//! below and accepts those above. A message travels as its tag, its size and its bytes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::raw::{c_int, c_short, c_ulong};
use std::os::unix::io::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::group::Shared;
use crate::matching::Message;
use crate::support::{Failure, Host, Work};
use crate::abi;

const STEP: Duration = Duration::from_millis(50); // until an abort of init is noticed
const LINGER: Duration = Duration::from_secs(2); // of destroy, for slow peers
const SCRATCH: usize = 256 << 10;
const HEAD: usize = 16;
const GREETING: usize = 24; // the secret, the rank, the world size

/// An outgoing message: head and data.
pub struct Outgoing {
    pub frame: Vec<u8>,
    pub work: Arc<Work>,
}

/// Makes room for more bytes of a message. Vec alone ends the process if memory is exhausted.
pub fn reserve(buffer: &mut Vec<u8>, bytes: usize) -> Result<(), Failure> {
    buffer.try_reserve(bytes).map_err(|_| Failure::new(abi::RESOURCE, "acme-id: no memory for a message"))
}

pub fn frame_of(tag: u64, data: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut frame = Vec::new();
    reserve(&mut frame, HEAD + data.len())?;
    frame.extend_from_slice(&tag.to_le_bytes());
    frame.extend_from_slice(&(data.len() as u64).to_le_bytes());
    frame.extend_from_slice(data);
    Ok(frame)
}

/// A connection to one rank.
pub struct Link {
    stream: Option<TcpStream>,
    head: Vec<u8>,
    data: Vec<u8>,
    sending: Option<Outgoing>,
    written: usize,
}

impl Link {
    fn new(stream: Option<TcpStream>) -> Link {
        Link { stream, head: Vec::with_capacity(HEAD), data: Vec::new(), sending: None, written: 0 }
    }

    /// Splits received bytes into messages.
    fn feed(&mut self, source: i32, mut bytes: &[u8], shared: &Shared) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let missing = HEAD - self.head.len();
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            if self.head.len() < HEAD {
                return Ok(());
            }
            let size = number(&self.head[8..]);
            // Memory grows with the bytes received, not with the size that a head declares.
            let missing = (size - self.data.len() as u64).min(bytes.len() as u64) as usize;
            let (data, rest) = bytes.split_at(missing);
            reserve(&mut self.data, data.len())?;
            self.data.extend_from_slice(data);
            bytes = rest;
            if self.data.len() as u64 == size {
                shared.deliver(Message { source, tag: number(&self.head), data: std::mem::take(&mut self.data) });
                self.head.clear();
            }
        }
        Ok(())
    }

    /// Reads once. Ok(true): bytes were read.
    fn read(&mut self, peer: i32, scratch: &mut [u8], shared: &Shared) -> Result<bool, Failure> {
        let got = match self.stream.as_mut().map(|stream| stream.read(scratch)) {
            Some(Ok(0)) => return Err(Failure::of_peer(peer, format!("acme-id: rank {} has closed its connection", peer))),
            Some(Ok(got)) => got,
            Some(Err(error)) if may_try_again(&error) => return Ok(false),
            Some(Err(error)) => {
                return Err(Failure::of_peer(peer, format!("acme-id: lost the connection to rank {}: {}", peer, error)))
            }
            None => return Ok(false),
        };
        self.feed(peer, &scratch[..got], shared)?;
        Ok(true)
    }

    /// Writes once. Leaves an error to `read`, which finds the peer's remaining bytes and then the end of file.
    fn write(&mut self, peer: i32, shared: &Shared) -> bool {
        if self.sending.is_none() {
            self.sending = shared.next_for(peer);
            self.written = 0;
        }
        let (stream, sending) = match (self.stream.as_mut(), self.sending.as_ref()) {
            (Some(stream), Some(sending)) => (stream, sending),
            _ => return false,
        };
        match stream.write(&sending.frame[self.written..]) {
            Ok(sent) => self.written += sent,
            Err(_) => return false,
        }
        if self.written == sending.frame.len() {
            sending.work.settle(Ok(())); // the kernel has it all
            self.sending = None;
        }
        true
    }
}

fn may_try_again(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::TimedOut)
}

fn number(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(eight)
}

/// The thread of a group. Runs until the group is dropped.
pub fn run(shared: &Shared, mut links: Vec<Link>) {
    let mut scratch = vec![0; SCRATCH];
    while !shared.stopping() {
        if shared.aborted() {
            links.iter_mut().for_each(|link| link.stream = None); // the peers see the end of the connections
        }
        let mut busy = false;
        for (peer, link) in links.iter_mut().enumerate().filter(|(_, link)| link.stream.is_some()) {
            busy |= link.write(peer as i32, shared);
            match link.read(peer as i32, &mut scratch, shared) {
                Ok(moved) => busy |= moved,
                Err(why) => {
                    *link = Link::new(None);
                    shared.lose(peer as i32, &why);
                }
            }
        }
        if !busy {
            sleep(&links, shared.woken());
        }
        while matches!(shared.woken().read(&mut scratch), Ok(got) if got > 0) {}
    }
    if !shared.aborted() {
        close_gently(links, &mut scratch);
    }
}

/// Shuts down writing and reads until the peer has closed. Closing with unread data would discard bytes in flight to
/// the peer.
fn close_gently(links: Vec<Link>, scratch: &mut [u8]) {
    let deadline = Instant::now() + LINGER;
    let mut streams: Vec<TcpStream> = links.into_iter().filter_map(|link| link.stream).collect();
    streams.retain(|stream| stream.shutdown(Shutdown::Write).is_ok() && stream.set_nonblocking(false).is_ok());
    for mut stream in streams {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO || stream.set_read_timeout(Some(left)).is_err() {
                break;
            }
            match stream.read(scratch) {
                Ok(got) if got > 0 => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                _ => break,
            }
        }
    }
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}
const POLLIN: c_short = 1;
const POLLOUT: c_short = 4;

extern "C" {
    fn poll(fds: *mut PollFd, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// Waits until a connection is ready or the group wakes its thread.
fn sleep(links: &[Link], woken: &UnixStream) {
    let mut fds = vec![PollFd { fd: woken.as_raw_fd(), events: POLLIN, revents: 0 }];
    for link in links {
        if let Some(stream) = &link.stream {
            let events = if link.sending.is_some() { POLLIN | POLLOUT } else { POLLIN };
            fds.push(PollFd { fd: stream.as_raw_fd(), events, revents: 0 });
        }
    }
    wait_for(&mut fds, -1);
}

fn wait_for(fds: &mut [PollFd], timeout_ms: c_int) {
    // SAFETY: the length is that of the array. After an error the caller looks again.
    unsafe { poll(fds.as_mut_ptr(), fds.len() as c_ulong, timeout_ms) };
}

/// The rank that starts, and its deadline.
pub struct Start {
    pub rank: i32,
    pub world_size: i32,
    pub host: Host,
    pub deadline: Option<Instant>,
}

impl Start {
    fn check(&self, what: &str) -> Result<(), Failure> {
        if self.host.abort_requested() {
            return Err(Failure::new(abi::CANCELLED, format!("acme-id: {}: the group is being aborted", what)));
        }
        if matches!(self.deadline, Some(at) if at <= Instant::now()) {
            return Err(Failure::new(abi::TIMEOUT, format!("acme-id: {}: not done within the timeout of init", what)));
        }
        Ok(())
    }

    fn greeting(&self, secret: &[u8], rank: i32) -> Vec<u8> {
        [secret, &rank.to_le_bytes()[..], &self.world_size.to_le_bytes()[..]].concat()
    }
}

fn secret() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Failure::from_io("cannot read /dev/urandom", &error))?;
    Ok(bytes)
}

/// The address that the option names; if it is empty, the one from which this rank reaches the store, else loopback.
fn listening_address(start: &Start, option: &str) -> Result<IpAddr, Failure> {
    if option.is_empty() {
        return Ok(start.host.store_address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
    option.parse().map_err(|_| {
        Failure::new(abi::INVALID, format!("acme-id: the address is not a numeric one, such as 127.0.0.1: '{}'", option))
    })
}

/// A link to each rank, by rank; this rank's own is empty.
pub fn connect_all(start: &Start, address: &str) -> Result<Vec<Link>, Failure> {
    let ip = listening_address(start, address)?;
    let listening = |error| Failure::from_io(&format!("cannot listen at the address {}", ip), &error);
    let listener = TcpListener::bind(SocketAddr::new(ip, 0)).map_err(listening)?;
    let mine = listener.local_addr().map_err(listening)?;
    listener.set_nonblocking(true).map_err(listening)?;
    let key = secret()?;
    start.host.store_set(&format!("tcp.{}", start.rank), &[&key[..], mine.to_string().as_bytes()].concat())?;
    let mut streams: Vec<Option<TcpStream>> = (0..start.world_size).map(|_| None).collect();
    for peer in 0..start.rank {
        streams[peer as usize] = Some(connect_to(start, peer)?);
    }
    accept_above(start, &listener, &key, &mut streams)?;
    for stream in streams.iter().flatten() {
        stream.set_nonblocking(true).map_err(|error| Failure::from_io("cannot set up a connection", &error))?;
        let _ = stream.set_nodelay(true); // failure only costs latency
    }
    Ok(streams.into_iter().map(Link::new).collect())
}

fn connect_to(start: &Start, peer: i32) -> Result<TcpStream, Failure> {
    let what = format!("connecting to rank {}", peer);
    let value = start.host.store_get(&format!("tcp.{}", peer), start.deadline);
    // The store's error does not name the peer.
    let value = value.map_err(|why| Failure { peer, text: format!("acme-id: {}: {}", what, why.text), ..why })?;
    let address: Option<SocketAddr> =
        value.get(16..).and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse().ok());
    let invalid = || Failure::new(abi::INTERNAL, format!("acme-id: {}: the store has no valid address", what));
    let address = address.ok_or_else(invalid)?;
    loop {
        start.check(&what)?;
        match TcpStream::connect_timeout(&address, STEP) {
            Ok(mut stream) => {
                let greeting = start.greeting(&value[..16], start.rank); // fits any socket's buffer
                return stream.write_all(&greeting).map(|_| stream).map_err(|error| lost(peer, &what, &error));
            }
            Err(error) if may_try_again(&error) => continue,
            Err(error) => return Err(lost(peer, &what, &error)),
        }
    }
}

fn lost(peer: i32, what: &str, error: &std::io::Error) -> Failure {
    Failure { status: abi::PEER_LOST, peer, ..Failure::from_io(what, error) }
}

/// Accepts the ranks above. Silent connections are closed for later ones, oldest first.
fn accept_above(
    start: &Start, listener: &TcpListener, key: &[u8], streams: &mut [Option<TcpStream>],
) -> Result<(), Failure> {
    let mut pending: VecDeque<(TcpStream, Vec<u8>)> = VecDeque::new();
    loop {
        let above = start.rank as usize + 1;
        let missing: Vec<String> =
            (above..streams.len()).filter(|&rank| streams[rank].is_none()).map(|rank| rank.to_string()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        start.check(&format!("waiting for rank {}", missing.join(", ")))?;
        let mut fds = vec![PollFd { fd: listener.as_raw_fd(), events: POLLIN, revents: 0 }];
        fds.extend(pending.iter().map(|(stream, _)| PollFd { fd: stream.as_raw_fd(), events: POLLIN, revents: 0 }));
        wait_for(&mut fds, STEP.as_millis() as c_int);
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        pending.push_back((stream, Vec::new()));
                    }
                }
                Err(error) if may_try_again(&error) => break,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(Failure::from_io("cannot accept the other ranks", &error)),
            }
        }
        while pending.len() > streams.len() + 16 {
            pending.pop_front();
        }
        for _ in 0..pending.len() {
            if let Some((mut stream, mut greeting)) = pending.pop_front() {
                let mut bytes = vec![0; GREETING - greeting.len()];
                match stream.read(&mut bytes) {
                    Ok(got) if got > 0 => greeting.extend_from_slice(&bytes[..got]),
                    Err(error) if may_try_again(&error) => {}
                    _ => continue,
                }
                if greeting.len() < GREETING {
                    pending.push_back((stream, greeting));
                    continue;
                }
                let rank = (above..streams.len()).find(|&rank| greeting == start.greeting(key, rank as i32));
                if let Some(slot) = rank.map(|rank| &mut streams[rank]) {
                    slot.get_or_insert(stream);
                }
            }
        }
    }
}
