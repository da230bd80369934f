//! The requests to a pool, by librados.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use super::connection::{Connection, Finish, Handles};
use super::library::{Functions, Handle, ListItem, done, text};
use crate::pool::{Callback, Change, Errno, Inspected, Pool, ReadCallback};

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;
/// `LIBRADOS_OPERATION_FULL_TRY`: a full pool returns an error at once; by default it would block
/// a write until there is room.
const FULL_TRY: c_int = 64;
/// `LIBRADOS_ALLOC_HINT_FLAG_RANDOM_READ | …_APPEND_ONLY | …_INCOMPRESSIBLE`: sealed
/// data cannot be compressed.
const HINTS: u32 = 8 | 16 | 512;

/// Number of objects that one call lists.
const LIST_AT_ONCE: usize = 1024;

/// A pointer that is sent with a request to the thread that completes it.
struct Sent<T>(*mut T);

// SAFETY: its target belongs to the request, which one thread at a time owns.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    fn take(self) -> *mut T {
        self.0
    }
}

impl Connection {
    /// Sends a command to the monitors and waits for the answer.
    pub(crate) fn monitor_command(&self, command: &str) -> Result<Vec<u8>, Errno> {
        let handles = self.handles();
        let functions = handles.functions;
        let command = text(command)?;
        let commands = [command.as_ptr()];
        let (mut answer, mut answer_bytes) = (ptr::null_mut(), 0);
        let (mut status, mut status_bytes) = (ptr::null_mut(), 0);
        // SAFETY: one command, ending in a zero; librados allocates the answers.
        let value = unsafe {
            (functions.rados_mon_command)(
                handles.cluster,
                commands.as_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &raw mut answer,
                &raw mut answer_bytes,
                &raw mut status,
                &raw mut status_bytes,
            )
        };
        let mut text = Vec::new();
        // SAFETY: what librados has allocated has that many bytes, and is freed once.
        unsafe {
            if !answer.is_null() {
                text.extend_from_slice(std::slice::from_raw_parts(
                    answer.cast::<u8>(),
                    answer_bytes,
                ));
                (functions.rados_buffer_free)(answer);
            }
            if !status.is_null() {
                (functions.rados_buffer_free)(status);
            }
        }
        done(value).map(|_| text)
    }
}

/// The pointer and length of `bytes`, as librados accepts them.
fn raw(bytes: &[u8]) -> (*const c_char, usize) {
    (bytes.as_ptr().cast(), bytes.len())
}

/// The results of a read operation that inspects an object. librados writes them.
struct Inspection {
    attributes: Handle,
    size: u64,
    time: libc::time_t,
    results: [c_int; 2],
}

impl Inspection {
    fn empty() -> Self {
        Self {
            attributes: ptr::null_mut(),
            size: 0,
            time: 0,
            results: [0; 2],
        }
    }

    /// A read operation that writes its results to `inspection`.
    ///
    /// # Safety
    /// `inspection` must be valid, and must live until the operation has ended.
    unsafe fn operation(functions: &Functions, inspection: *mut Self) -> Handle {
        // SAFETY: it allocates a list of questions; the caller keeps the places of the answers.
        unsafe {
            let operation = (functions.rados_create_read_op)();
            (functions.rados_read_op_getxattrs)(
                operation,
                &raw mut (*inspection).attributes,
                &raw mut (*inspection).results[0],
            );
            (functions.rados_read_op_stat)(
                operation,
                &raw mut (*inspection).size,
                &raw mut (*inspection).time,
                &raw mut (*inspection).results[1],
            );
            operation
        }
    }

    /// The size and attributes, after the operation has ended with `value`.
    fn inspected(self, functions: &Functions, value: c_int) -> Result<Inspected, Errno> {
        let attributes = match self.attributes.is_null() {
            true => Vec::new(),
            // SAFETY: librados has created the list, and access is exclusive.
            false => unsafe { attributes_in(functions, self.attributes) },
        };
        let [first, second] = self.results;
        let answered = done(value).and(done(first)).and(done(second));
        answered.map(|_| Inspected {
            size: self.size,
            attributes,
        })
    }
}

impl Handles {
    fn add(&self, operation: Handle, change: &Change<'_>) -> Result<(), Errno> {
        let functions = self.functions;
        match *change {
            // SAFETY: for all: the operation is live, texts end in a zero, and the data is copied
            // before the call returns.
            Change::Create => unsafe {
                (functions.rados_write_op_create)(operation, EXCLUSIVE, ptr::null());
            },
            // SAFETY: as above.
            Change::MustExist => unsafe { (functions.rados_write_op_assert_exists)(operation) },
            Change::Expect {
                object_bytes,
                write_bytes,
            } =>
            // SAFETY: as above.
            unsafe {
                (functions.rados_write_op_set_alloc_hint2)(
                    operation,
                    object_bytes,
                    write_bytes,
                    HINTS,
                );
            },
            Change::MustBe(bytes) => self.compare_content(operation, bytes),
            Change::MustHave(name, value) => self.compare_attribute(operation, name, value)?,
            Change::Set(name, value) => {
                let (name, (value, length)) = (text(name)?, raw(value));
                // SAFETY: as above.
                unsafe {
                    (functions.rados_write_op_setxattr)(operation, name.as_ptr(), value, length);
                }
            }
            Change::Write(offset, bytes) => {
                let (bytes, length) = raw(bytes);
                // SAFETY: as above.
                unsafe { (functions.rados_write_op_write)(operation, bytes, length, offset) };
            }
            Change::Replace(bytes) => {
                let (bytes, length) = raw(bytes);
                // SAFETY: as above.
                unsafe { (functions.rados_write_op_write_full)(operation, bytes, length) };
            }
            // SAFETY: as above.
            Change::Zero(offset, length) => unsafe {
                (functions.rados_write_op_zero)(operation, offset, length);
            },
            // SAFETY: as above.
            Change::Remove => unsafe { (functions.rados_write_op_remove)(operation) },
        }
        Ok(())
    }

    /// Adds the condition that the object consists of `bytes`.
    fn compare_content(&self, operation: Handle, bytes: &[u8]) {
        // Bytes behind the end of an object compare as zeroes: one zero ensures that the
        // object ends there.
        let bytes = [bytes, &[0]].concat();
        let (bytes, length) = raw(&bytes);
        // SAFETY: the operation is live, and the data is copied before the call returns; the
        // whole operation says if they differ.
        unsafe {
            (self.functions.rados_write_op_cmpext)(operation, bytes, length, 0, ptr::null_mut());
        }
    }

    /// Adds the condition that an attribute has this value.
    fn compare_attribute(&self, operation: Handle, name: &str, value: &[u8]) -> Result<(), Errno> {
        let (name, (value, length)) = (text(name)?, raw(value));
        // SAFETY: the operation is live, the name ends in a zero, and the data is copied before
        // the call returns.
        unsafe {
            (self.functions.rados_write_op_cmpxattr)(
                operation,
                name.as_ptr(),
                EQUAL,
                value,
                length,
            );
        }
        Ok(())
    }
}

impl Pool for Connection {
    fn change(&self, name: &str, changes: &[Change<'_>], callback: Callback<()>) {
        let handles = self.handles();
        let functions = handles.functions;
        let finish: Finish = Box::new(move |value| callback(done(value).map(drop)));
        // SAFETY: it allocates a list of changes.
        let operation = unsafe { (functions.rados_create_write_op)() };
        let added = changes
            .iter()
            .try_for_each(|change| handles.add(operation, change));
        match added.and_then(|()| text(name)) {
            Err(errno) => finish(errno.0.saturating_neg()),
            Ok(name) => handles.submit(finish, |completion| {
                let mtime = ptr::null_mut();
                // SAFETY: all handles are live, and the name is copied.
                unsafe {
                    (functions.rados_aio_write_op_operate)(
                        operation,
                        handles.io,
                        completion,
                        name.as_ptr(),
                        mtime,
                        FULL_TRY,
                    )
                }
            }),
        }
        // SAFETY: its content was moved away when it was handed over.
        unsafe { (functions.rados_release_write_op)(operation) };
    }

    fn read(&self, name: &str, offset: u64, length: usize, callback: ReadCallback) {
        let handles = self.handles();
        let name = match text(name) {
            Err(errno) => return callback(Err(errno)),
            Ok(name) => name,
        };
        // Not cleared, which would cost as much as the read.
        let mut buffer = Box::<[u8]>::new_uninit_slice(length);
        let bytes = buffer.as_mut_ptr();
        // The request owns the buffer, which does not move.
        let finish: Finish = Box::new(move |value| {
            callback(done(value).map(|read| {
                let read = &buffer[..read.min(length)];
                // SAFETY: librados has written as many bytes as it says.
                unsafe { std::slice::from_raw_parts(read.as_ptr().cast(), read.len()) }
            }));
        });
        handles.submit(finish, |completion| {
            // SAFETY: all handles are live, the name is copied, and the buffer has
            // `length` bytes and lives until the request ends.
            unsafe {
                (handles.functions.rados_aio_read)(
                    handles.io,
                    name.as_ptr(),
                    completion,
                    bytes.cast(),
                    length,
                    offset,
                )
            }
        });
    }

    fn inspect(&self, name: &str, callback: Callback<Inspected>) {
        let handles = self.handles();
        let functions = handles.functions;
        let name = match text(name) {
            Err(errno) => return callback(Err(errno)),
            Ok(name) => name,
        };
        let inspection = Box::into_raw(Box::new(Inspection::empty()));
        // SAFETY: the inspection is freed when the request has ended.
        let operation = unsafe { Inspection::operation(functions, inspection) };
        let (sent, sent_operation) = (Sent(inspection), Sent(operation));
        let finish: Finish = Box::new(move |value| {
            // SAFETY: the request has ended, so access is exclusive.
            let inspection = unsafe { Box::from_raw(sent.take()) };
            let inspected = inspection.inspected(functions, value);
            // SAFETY: the request has ended.
            unsafe { (functions.rados_release_read_op)(sent_operation.take()) };
            callback(inspected);
        });
        handles.submit(finish, |completion| {
            // SAFETY: all handles are live, and the name is copied.
            unsafe {
                (functions.rados_aio_read_op_operate)(
                    operation,
                    handles.io,
                    completion,
                    name.as_ptr(),
                    0,
                )
            }
        });
    }

    fn list(&self, each: &mut dyn FnMut(&str)) -> Result<(), Errno> {
        let handles = self.handles();
        let (functions, io) = (handles.functions, handles.io);
        // SAFETY: the pool is open.
        let (mut from, mut next, end) = unsafe {
            (
                (functions.rados_object_list_begin)(io),
                (functions.rados_object_list_begin)(io),
                (functions.rados_object_list_end)(io),
            )
        };
        let listed = loop {
            // SAFETY: the cursors are live.
            if unsafe { (functions.rados_object_list_is_end)(io, from) } != 0 {
                break Ok(());
            }
            let empty = ListItem {
                oid_length: 0,
                oid: ptr::null_mut(),
                nspace_length: 0,
                nspace: ptr::null_mut(),
                locator_length: 0,
                locator: ptr::null_mut(),
            };
            let mut items = [empty; LIST_AT_ONCE];
            // SAFETY: there is room for as many items as is said; `next` is a cursor, which
            // is set.
            let found = unsafe {
                (functions.rados_object_list)(
                    io,
                    from,
                    end,
                    LIST_AT_ONCE,
                    ptr::null(),
                    0,
                    items.as_mut_ptr(),
                    &raw mut next,
                )
            };
            let found = match done(found) {
                Ok(found) => found.min(LIST_AT_ONCE),
                Err(errno) => break Err(errno),
            };
            for item in &items[..found] {
                // SAFETY: librados has filled it: that many bytes are there.
                let name =
                    unsafe { std::slice::from_raw_parts(item.oid.cast::<u8>(), item.oid_length) };
                // Names of segments are text; others do not match.
                each(&String::from_utf8_lossy(name));
            }
            // SAFETY: it frees what the call above has filled.
            unsafe { (functions.rados_object_list_free)(found, items.as_mut_ptr()) };
            std::mem::swap(&mut from, &mut next);
        };
        for cursor in [from, next, end] {
            // SAFETY: it is not used again.
            unsafe { (functions.rados_object_list_cursor_free)(io, cursor) };
        }
        listed
    }

    fn free_bytes(&self) -> Result<Option<u64>, Errno> {
        let answer = self.monitor_command(r#"{"prefix":"df","format":"json"}"#)?;
        Ok(free_in(&answer, &self.pool))
    }
}

/// Free room of a pool, in an answer to `ceph df`.
fn free_in(answer: &[u8], pool: &str) -> Option<u64> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let pools = answer.get("pools")?.as_array()?;
    let found = pools.iter().find(|found| found["name"] == pool)?;
    found.get("stats")?.get("max_avail")?.as_u64()
}

/// Reads the attributes in a list and ends it.
///
/// # Safety
/// The list must be one of librados', and must not be used again.
unsafe fn attributes_in(functions: &Functions, list: Handle) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the list is live, and so are the places of the answers.
        let next = unsafe {
            (functions.rados_getxattrs_next)(list, &raw mut name, &raw mut value, &raw mut length)
        };
        if next < 0 || name.is_null() {
            break;
        }
        // SAFETY: a name ends in a zero; the value has that many bytes, and both
        // live as long as the list.
        let (name, value) = unsafe {
            let value: &[u8] = match value.is_null() {
                true => &[],
                false => std::slice::from_raw_parts(value.cast::<u8>(), length),
            };
            (CStr::from_ptr(name), value)
        };
        found.push((name.to_string_lossy().into_owned(), value.to_vec()));
    }
    // SAFETY: it is not used again.
    unsafe { (functions.rados_getxattrs_end)(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_room_is_read_from_the_answer_of_the_monitors() {
        let answer = br#"{"stats":{},"pools":[{"name":"a","stats":{"max_avail":7}},
            {"name":"b","stats":{"stored":1,"max_avail":9000000000}}]}"#;
        assert_eq!(free_in(answer, "b"), Some(9_000_000_000));
        assert_eq!(free_in(answer, "c"), None);
        assert_eq!(free_in(b"", "a"), None);
    }
}
