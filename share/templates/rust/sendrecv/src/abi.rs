//! The C ABI of Backplane (backplane/abi/*.h), restricted to what this backend uses. Layouts are asserted at the end.
#![allow(dead_code)]

use std::mem::{align_of, size_of};
use std::os::raw::{c_char, c_void};

pub const OK: i32 = 0;
pub const INVALID: i32 = 1;
pub const UNSUPPORTED: i32 = 2;
pub const TIMEOUT: i32 = 3;
pub const CANCELLED: i32 = 4;
pub const PEER_LOST: i32 = 5;
pub const RESOURCE: i32 = 6;
pub const AGAIN: i32 = 7;
pub const INTERNAL: i32 = 8;

pub const MAGIC: u32 = 0x314b_5042;
pub const MAJOR: u32 = 1;
pub const MINOR: u32 = 0;

pub const KIND_PROCESS_GROUP: u32 = 1;
pub const BACKEND_TAGS: u32 = 1;
pub const BACKEND_ANY_SOURCE: u32 = 2;
pub const BACKEND_AUTONOMOUS: u32 = 4;
pub const BACKEND_THREADS: u32 = 8;
pub const BACKEND_BOUNDED: u32 = 64;

pub const SEND: u32 = 14;
pub const RECV: u32 = 15;
pub const ALL_DTYPES: u64 = (1 << 17) - 1;
pub const HOST_MEMORY: u64 = 1;
pub const ANY_SOURCE: i32 = -1;
pub const OP_SYNC: u64 = 1;
pub const OPTION_STRING: u32 = 0;

/// Structs as in C, with the size and offsets of layout.h; a difference is a compile error.
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident: $size:literal { $($field:ident: $type:ty = $offset:literal,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = {
            let mut end = 0;
            $(
                // The offset that repr(C) gives a field.
                let place = (end + align_of::<$type>() - 1) / align_of::<$type>() * align_of::<$type>();
                assert!(place == $offset);
                end = place + size_of::<$type>();
            )*
            assert!(end <= $size && size_of::<$name>() == $size);
        };
    };
}

/// Bytes of one element of a dtype.
pub fn dtype_size(dtype: u32) -> u64 {
    const SIZES: [u8; 17] = [1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16];
    SIZES.get(dtype as usize).map_or(0, |&size| u64::from(size))
}

layout! {
    pub struct Error: 1112 {
        struct_size: u32 = 0,
        status: i32 = 4,
        native_code: i64 = 8,
        peer_rank: i32 = 16,
        reserved: u32 = 20,
        text: [u8; 1024] = 24,
        group: [u8; 64] = 1048,
    }
}

layout! {
    #[derive(Clone, Copy)]
    pub struct Buffer: 24 {
        data: *mut u8 = 0,
        count: u64 = 8,
        memory: u32 = 16,
        device: i32 = 20,
    }
}

layout! {
    pub struct OpResult: 24 {
        struct_size: u32 = 0,
        source: i32 = 4,
        bytes: u64 = 8,
        tag: u64 = 16,
    }
}

layout! {
    pub struct Op: 168 {
        struct_size: u32 = 0,
        kind: u32 = 4,
        dtype: u32 = 8,
        reduce_op: u32 = 12,
        root: i32 = 16,
        peer: i32 = 20,
        tag: u64 = 24,
        seq: u64 = 32,
        flags: u64 = 40,
        timeout_ns: i64 = 48,
        input: Buffer = 56,
        output: Buffer = 80,
        in_counts: *const u64 = 104,
        in_displs: *const u64 = 112,
        out_counts: *const u64 = 120,
        out_displs: *const u64 = 128,
        scalar: *const c_void = 136,
        stream: *mut c_void = 144,
        result: *mut OpResult = 152,
        message: *mut c_void = 160,
    }
}

layout! {
    pub struct KeyValue: 16 {
        key: *const c_char = 0,
        value: *const c_char = 8,
    }
}

pub const EXT_NETWORK: &str = "backplane.network/1\0";

layout! {
    pub struct Network: 16 {
        struct_size: u32 = 0,
        reserved: u32 = 4,
        store_address: *const c_char = 8,
    }
}

layout! {
    pub struct Host: 96 {
        struct_size: u32 = 0,
        abi_minor: u32 = 4,
        ctx: *mut c_void = 8,
        log: unsafe extern "C" fn(*mut c_void, u32, *const c_char) = 16,
        abort_requested: unsafe extern "C" fn(*mut c_void) -> i32 = 24,
        store_set: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, u64, *mut Error) -> i32 = 32,
        store_get: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void, u64, *mut u64, i64, *mut Error) -> i32 = 40,
        store_add: *const c_void = 48,
        store_wait: *const c_void = 56,
        store_compare_set: *const c_void = 64,
        store_delete: *const c_void = 72,
        extension: unsafe extern "C" fn(*mut c_void, *const c_char) -> *const c_void = 80,
        report_failure: *const c_void = 88,
    }
}

layout! {
    pub struct BpOption: 64 {
        struct_size: u32 = 0,
        kind: u32 = 4,
        flags: u32 = 8,
        reserved: u32 = 12,
        key: *const c_char = 16,
        default_value: *const c_char = 24,
        help: *const c_char = 32,
        choices: *const c_char = 40,
        min: f64 = 48,
        max: f64 = 56,
    }
}

/// An operation in flight: opaque to the core.
pub type WorkHandle = c_void;

layout! {
    pub struct ProcessGroupApi: 72 {
        struct_size: u32 = 0,
        reserved: u32 = 4,
        submit: unsafe extern "C" fn(*mut c_void, *const Op, *mut *mut WorkHandle, *mut Error) -> i32 = 8,
        work_test: unsafe extern "C" fn(*mut c_void, *mut WorkHandle, *mut Error) -> i32 = 16,
        work_wait: unsafe extern "C" fn(*mut c_void, *mut WorkHandle, i64, *mut Error) -> i32 = 24,
        work_cancel: unsafe extern "C" fn(*mut c_void, *mut WorkHandle) = 32,
        work_release: unsafe extern "C" fn(*mut c_void, *mut WorkHandle) = 40,
        abort: unsafe extern "C" fn(*mut c_void, *const Error) = 48,
        destroy: unsafe extern "C" fn(*mut c_void) = 56,
        extension: unsafe extern "C" fn(*mut c_void, *const c_char) -> *const c_void = 64,
    }
}

layout! {
    pub struct Capability: 32 {
        struct_size: u32 = 0,
        op: u32 = 4,
        dtypes: u64 = 8,
        reduce_ops: u64 = 16,
        memory: u64 = 24,
    }
}

layout! {
    pub struct Init: 104 {
        struct_size: u32 = 0,
        rank: i32 = 4,
        world_size: i32 = 8,
        device: i32 = 12,
        name: *const c_char = 16,
        host: *const Host = 24,
        options: *const c_void = 32,
        values: *const KeyValue = 40,
        value_count: u32 = 48,
        kind: u32 = 52,
        timeout_ns: i64 = 56,
        global_ranks: *const i32 = 64,
        inner: *const c_void = 72,
        parent: *const Agent = 80,
        parent_ranks: *const i32 = 88,
        inner_backend: *const Backend = 96,
    }
}

layout! {
    pub struct Agent: 48 {
        struct_size: u32 = 0,
        kind: u32 = 4,
        api: *const c_void = 8,
        this: *mut c_void = 16,
        rank: i32 = 24,
        world_size: i32 = 28,
        capabilities: *const *const Capability = 32,
        capability_count: u32 = 40,
        reserved: u32 = 44,
    }
}

layout! {
    pub struct Backend: 104 {
        struct_size: u32 = 0,
        kinds: u32 = 4,
        flags: u32 = 8,
        option_count: u32 = 12,
        id: *const c_char = 16,
        version: *const c_char = 24,
        summary: *const c_char = 32,
        options: *const *const BpOption = 40,
        capabilities: *const *const Capability = 48,
        capability_count: u32 = 56,
        tag_bits: u32 = 60,
        probe: *const c_void = 64,
        construct_options: *const c_void = 72,
        destroy_options: *const c_void = 80,
        init: unsafe extern "C" fn(*const Backend, *const Init, *mut Agent, *mut Error) -> i32 = 88,
        finalize: *const c_void = 96,
    }
}

layout! {
    pub struct Plugin: 40 {
        struct_size: u32 = 0,
        magic: u32 = 4,
        built_minor: u32 = 8,
        need_minor: u32 = 12,
        vendor: *const c_char = 16,
        backends: *const *const Backend = 24,
        backend_count: u32 = 32,
        reserved: u32 = 36,
    }
}

layout! {
    pub struct Note: 204 {
        name_size: u32 = 0,
        description_size: u32 = 4,
        kind: u32 = 8,
        name: [u8; 12] = 12,
        magic: u32 = 24,
        abi_major: u32 = 28,
        built_minor: u32 = 32,
        need_minor: u32 = 36,
        backend_count: u32 = 40,
        backend_size: u32 = 44,
        needs: [u8; 80] = 48,
        backend: NoteBackend = 128,
    }
}

layout! {
    pub struct NoteBackend: 76 {
        id: [u8; 36] = 0,
        version: [u8; 24] = 36,
        kinds: u32 = 60,
        flags: u32 = 64,
        ops: u32 = 68,
        ops_high: u32 = 72,
    }
}

/// A string in a field of fixed size, padded with NULs. For constants: a string that is too long is a compile error.
pub const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    assert!(bytes.len() < N);
    let mut field = [0; N];
    let mut i = 0;
    while i < bytes.len() {
        field[i] = bytes[i];
        i += 1;
    }
    field
}

/// The size of a struct as the value of its `struct_size`.
pub const fn size<T>() -> u32 {
    size_of::<T>() as u32
}
