//! Matches the messages to this rank with its receives, by the rules of op.h: a receive takes the oldest message that
//! matches its source and tag, a message goes to the oldest receive that matches.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::abi;
use crate::support::{Failure, Work};

/// A completely received message.
pub struct Message {
    pub source: i32,
    pub tag: u64,
    pub data: Vec<u8>,
}

/// A pending receive. Its pointers belong to the caller and are valid until `work` is settled.
pub struct Receive {
    pub source: i32,
    pub tag: u64,
    pub data: *mut u8,
    pub capacity: u64,
    pub result: *mut abi::OpResult,
    pub work: Arc<Work>,
}

// SAFETY: the caller does not touch the buffer until the work is settled.
unsafe impl Send for Receive {}

impl Receive {
    fn matches(&self, message: &Message) -> bool {
        self.tag == message.tag && (self.source == abi::ANY_SOURCE || self.source == message.source)
    }

    fn take(self, message: &Message) {
        let size = message.data.len() as u64;
        // SAFETY: see the struct; the copy is no longer than the buffer.
        unsafe {
            if let Some(result) = self.result.as_mut() {
                result.source = message.source;
                result.bytes = size;
                result.tag = message.tag;
            }
            if size > 0 && size <= self.capacity {
                std::ptr::copy_nonoverlapping(message.data.as_ptr(), self.data, message.data.len());
            }
        }
        self.work.settle(if size <= self.capacity {
            Ok(())
        } else {
            let text = format!(
                "acme-id: a message of {} bytes from rank {} does not fit the receive buffer of {} bytes",
                size, message.source, self.capacity
            );
            Err(Failure { peer: message.source, ..Failure::new(abi::INVALID, text) })
        });
    }
}

pub struct Mailbox {
    rank: i32,
    messages: VecDeque<Message>,
    receives: VecDeque<Receive>,
    lost: Vec<Option<Failure>>, // by rank: why no more messages arrive from it
    closed: Option<Failure>,
}

impl Mailbox {
    pub fn new(rank: i32, world_size: i32) -> Mailbox {
        Mailbox {
            rank,
            messages: VecDeque::new(),
            receives: VecDeque::new(),
            lost: (0..world_size).map(|_| None).collect(),
            closed: None,
        }
    }

    pub fn deliver(&mut self, message: Message) {
        match self.receives.iter().position(|receive| receive.matches(&message)) {
            Some(at) => self.receives.remove(at).into_iter().for_each(|receive| receive.take(&message)),
            None => self.messages.push_back(message),
        }
    }

    pub fn post(&mut self, receive: Receive) {
        if let Some(at) = self.messages.iter().position(|message| receive.matches(message)) {
            if let Some(message) = self.messages.remove(at) {
                receive.take(&message);
            }
        } else if let Some(why) = self.closed.clone().or_else(|| self.reason_to_fail(receive.source)) {
            receive.work.settle(Err(why));
        } else {
            self.receives.push_back(receive);
        }
    }

    /// Why no message can arrive for a receive from `source`; None if one can.
    fn reason_to_fail(&self, source: i32) -> Option<Failure> {
        if source != abi::ANY_SOURCE {
            return self.lost[source as usize].clone();
        }
        let mut others = self.lost.iter().enumerate().filter(|(rank, _)| *rank as i32 != self.rank).peekable();
        others.peek()?; // in a group of one, the rank can send to itself
        others.try_fold(None, |_, (_, why)| why.clone().map(Some)).flatten()
    }

    /// Withdraws a receive if it is still pending.
    pub fn cancel(&mut self, work: &Arc<Work>) {
        self.receives.retain(|receive| !Arc::ptr_eq(&receive.work, work));
    }

    /// Ends receiving from this rank; messages that have arrived can still be received.
    pub fn lose(&mut self, rank: i32, why: &Failure) {
        self.lost[rank as usize].get_or_insert(why.clone());
        let waiting = std::mem::take(&mut self.receives);
        for receive in waiting {
            match self.reason_to_fail(receive.source) {
                Some(why) => receive.work.settle(Err(why)),
                None => self.receives.push_back(receive),
            }
        }
    }

    /// Fails all receives, now and later.
    pub fn close(&mut self, why: &Failure) {
        self.closed.get_or_insert(why.clone());
        self.messages.clear();
        for receive in self.receives.drain(..) {
            receive.work.settle(Err(why.clone()));
        }
    }
}
