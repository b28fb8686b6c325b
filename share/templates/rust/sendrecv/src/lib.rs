//! acme-id, a backend for Backplane in Rust with send and recv over TCP. The core implements every collective.
//!
//! The entry points of the core: the note, the tables, and functions that return every failure and panic as a status.

mod abi;
mod group;
mod matching;
mod support;
mod transport;

use std::os::raw::{c_char, c_void};
use std::ptr::{addr_of, null, null_mut};
use std::sync::Arc;

use group::Group;
use support::{guarded, text_of, Failure, Host, Work};

const ID: &str = "acme-id\0";
const VERSION: &str = "0.1.0\0";
// BOUNDED: no call blocks beyond its deadline, so the core calls the backend on the caller's thread.
const FLAGS: u32 = abi::BACKEND_TAGS
    | abi::BACKEND_ANY_SOURCE
    | abi::BACKEND_AUTONOMOUS
    | abi::BACKEND_THREADS
    | abi::BACKEND_BOUNDED;

unsafe fn group_of<'a>(this: *mut c_void) -> &'a Group {
    &*this.cast::<Group>()
}
unsafe fn work_of<'a>(work: *mut abi::WorkHandle) -> &'a Arc<Work> {
    &*work.cast::<Arc<Work>>()
}

unsafe extern "C" fn submit(
    this: *mut c_void, op: *const abi::Op, work: *mut *mut abi::WorkHandle, error: *mut abi::Error,
) -> i32 {
    guarded(error, || {
        *work = group_of(this).submit(&*op)?.map_or(null_mut(), |made| Box::into_raw(Box::new(made)).cast());
        Ok(abi::OK)
    })
}

unsafe extern "C" fn work_wait(
    _: *mut c_void, work: *mut abi::WorkHandle, timeout_ns: i64, error: *mut abi::Error,
) -> i32 {
    guarded(error, || match work_of(work).wait(timeout_ns) {
        Some(outcome) => outcome.map(|_| abi::OK),
        None => Ok(abi::AGAIN),
    })
}

unsafe extern "C" fn work_test(this: *mut c_void, work: *mut abi::WorkHandle, error: *mut abi::Error) -> i32 {
    work_wait(this, work, 0, error)
}

unsafe extern "C" fn work_cancel(this: *mut c_void, work: *mut abi::WorkHandle) {
    guarded(null_mut(), || {
        group_of(this).cancel(work_of(work));
        Ok(abi::OK)
    });
}

unsafe extern "C" fn work_release(_: *mut c_void, work: *mut abi::WorkHandle) {
    guarded(null_mut(), || {
        drop(Box::from_raw(work.cast::<Arc<Work>>()));
        Ok(abi::OK)
    });
}

unsafe extern "C" fn abort(this: *mut c_void, why: *const abi::Error) {
    guarded(null_mut(), || {
        group_of(this).abort(&Failure::read(&*why));
        Ok(abi::OK)
    });
}

unsafe extern "C" fn destroy(this: *mut c_void) {
    guarded(null_mut(), || {
        drop(Box::from_raw(this.cast::<Group>()));
        Ok(abi::OK)
    });
}

unsafe extern "C" fn extension(_: *mut c_void, _: *const c_char) -> *const c_void {
    null()
}

unsafe extern "C" fn init(
    _: *const abi::Backend, init: *const abi::Init, agent: *mut abi::Agent, error: *mut abi::Error,
) -> i32 {
    guarded(error, || {
        let init = &*init;
        let address = text_of((*init.values).value); // the options come in the order of the table below
        let group = Group::start(init.rank, init.world_size, Host::new(init.host), init.timeout_ns, &address)?;
        let agent = &mut *agent;
        agent.kind = abi::KIND_PROCESS_GROUP;
        agent.api = addr_of!(API).cast();
        agent.this = Box::into_raw(Box::new(group)).cast();
        agent.rank = init.rank;
        agent.world_size = init.world_size;
        Ok(abi::OK)
    })
}

/// A constant that holds pointers to other constants.
#[repr(transparent)]
pub struct Constant<T>(T);
// SAFETY: constants are never written to.
unsafe impl<T> Sync for Constant<T> {}

static API: abi::ProcessGroupApi = abi::ProcessGroupApi {
    struct_size: abi::size::<abi::ProcessGroupApi>(),
    reserved: 0,
    submit,
    work_test,
    work_wait,
    work_cancel,
    work_release,
    abort,
    destroy,
    extension,
};

const fn text(text: &'static str) -> *const c_char {
    text.as_ptr().cast()
}

static ADDRESS: Constant<abi::BpOption> = Constant(abi::BpOption {
    struct_size: abi::size::<abi::BpOption>(),
    kind: abi::OPTION_STRING,
    flags: 0,
    reserved: 0,
    key: text("address\0"),
    default_value: text("\0"),
    help: text("numeric address of this host that the others reach; empty: the one from which this rank reaches the store, else 127.0.0.1\0"),
    choices: null(),
    min: 0.0,
    max: 0.0,
});
const fn moves(op: u32) -> abi::Capability {
    let struct_size = abi::size::<abi::Capability>();
    abi::Capability { struct_size, op, dtypes: abi::ALL_DTYPES, reduce_ops: 0, memory: abi::HOST_MEMORY }
}
static CAN_SEND: abi::Capability = moves(abi::SEND);
static CAN_RECV: abi::Capability = moves(abi::RECV);
static OPTIONS: Constant<[&abi::BpOption; 1]> = Constant([&ADDRESS.0]);
static CAPABILITIES: Constant<[&abi::Capability; 2]> = Constant([&CAN_SEND, &CAN_RECV]);
static BACKEND: Constant<abi::Backend> = Constant(abi::Backend {
    struct_size: abi::size::<abi::Backend>(),
    kinds: abi::KIND_PROCESS_GROUP,
    flags: FLAGS,
    option_count: 1,
    id: text(ID),
    version: text(VERSION),
    summary: text("sends and receives over TCP\0"),
    options: addr_of!(OPTIONS).cast(),
    capabilities: addr_of!(CAPABILITIES).cast(),
    capability_count: 2,
    tag_bits: 0,
    probe: null(),
    construct_options: null(),
    destroy_options: null(),
    init,
    finalize: null(),
});
static BACKENDS: Constant<[&abi::Backend; 1]> = Constant([&BACKEND.0]);

#[used]
#[link_section = ".note.backplane"]
static NOTE: abi::Note = abi::Note {
    name_size: 10,
    description_size: abi::size::<abi::Note>() - 24,
    kind: 1,
    name: abi::padded("Backplane"),
    magic: abi::MAGIC,
    abi_major: abi::MAJOR,
    built_minor: abi::MINOR,
    need_minor: 0,
    backend_count: 1,
    backend_size: abi::size::<abi::NoteBackend>(),
    needs: abi::padded(""),
    backend: abi::NoteBackend {
        id: abi::padded(ID),
        version: abi::padded(VERSION),
        kinds: abi::KIND_PROCESS_GROUP,
        flags: FLAGS,
        ops: 1 << abi::SEND | 1 << abi::RECV,
        ops_high: 0,
    },
};

/// The one symbol that a plugin exports.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static bp_plugin_v1: Constant<abi::Plugin> = Constant(abi::Plugin {
    struct_size: abi::size::<abi::Plugin>(),
    magic: abi::MAGIC,
    built_minor: abi::MINOR,
    need_minor: 0,
    vendor: text("acme-id's author\0"),
    backends: addr_of!(BACKENDS).cast(),
    backend_count: 1,
    reserved: 0,
});
