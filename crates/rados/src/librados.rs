//! librados, loaded when it is first asked for: all the `unsafe` of this crate,
//! behind functions that have none.
//!
//! Nothing links to the library, so the program starts where there is no Ceph.
//! What is asked of a cluster is asked without waiting: librados calls
//! [`completed`] once for each request, on a thread of its own, where nothing may
//! wait.
//!
//! Ownership, on which the safety of all this rests:
//!
//! * A [`Request`] owns what librados writes into. It is leaked when the request is
//!   handed over, and taken back by [`completed`], or at once if librados
//!   refuses it, and by nobody else.
//! * A [`Connection`] outlives its requests: to drop it waits for all of them,
//!   and is never done on a thread of librados.
//! * The library is never unloaded.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::place::{self, Settings};
use crate::pool::{Change, Errno, Inspected, Pool, Told, ToldBytes};

/// What is loaded. The number is that of the interface, the same since 2009.
const LIBRARY: &str = "librados.so.2";

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;
/// `LIBRADOS_OPERATION_FULL_TRY`: a full pool answers that it is, where else it
/// would keep a write until there is room.
const FULL_TRY: c_int = 64;
/// `LIBRADOS_ALLOC_HINT_FLAG_RANDOM_READ | …_APPEND_ONLY | …_INCOMPRESSIBLE`: what
/// is sealed cannot be compressed.
const HINTS: u32 = 8 | 16 | 512;

/// Objects that are listed by one call.
const LIST_AT_ONCE: usize = 1024;

type Handle = *mut c_void;
type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// `rados_object_list_item`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ListItem {
    oid_length: usize,
    oid: *mut c_char,
    nspace_length: usize,
    nspace: *mut c_char,
    locator_length: usize,
    locator: *mut c_char,
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library, as `librados.h` declares them.
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of `librados.h`, which has kept
                    // them since the version 10 of Ceph.
                    $($name: *unsafe {
                        library.get(concat!(stringify!($name), "\0").as_bytes())
                    }?,)*
                })
            }
        }
    };
}

functions! {
    fn rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    fn rados_conf_read_file(Handle, *const c_char) -> c_int;
    fn rados_conf_parse_env(Handle, *const c_char) -> c_int;
    fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rados_conf_get(Handle, *const c_char, *mut c_char, usize) -> c_int;
    fn rados_connect(Handle) -> c_int;
    fn rados_shutdown(Handle);
    fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    fn rados_ioctx_destroy(Handle);
    fn rados_ioctx_set_namespace(Handle, *const c_char);
    fn rados_aio_create_completion(*mut c_void, Option<Callback>, Option<Callback>, *mut Handle) -> c_int;
    fn rados_aio_get_return_value(Handle) -> c_int;
    fn rados_aio_release(Handle);
    fn rados_aio_read(Handle, *const c_char, Handle, *mut c_char, usize, u64) -> c_int;
    fn rados_create_write_op() -> Handle;
    fn rados_release_write_op(Handle);
    fn rados_write_op_assert_exists(Handle);
    fn rados_write_op_create(Handle, c_int, *const c_char);
    fn rados_write_op_cmpext(Handle, *const c_char, usize, u64, *mut c_int);
    fn rados_write_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
    fn rados_write_op_setxattr(Handle, *const c_char, *const c_char, usize);
    fn rados_write_op_write(Handle, *const c_char, usize, u64);
    fn rados_write_op_write_full(Handle, *const c_char, usize);
    fn rados_write_op_zero(Handle, u64, u64);
    fn rados_write_op_remove(Handle);
    fn rados_write_op_set_alloc_hint2(Handle, u64, u64, u32);
    fn rados_aio_write_op_operate(Handle, Handle, Handle, *const c_char, *mut c_void, c_int) -> c_int;
    fn rados_create_read_op() -> Handle;
    fn rados_release_read_op(Handle);
    fn rados_read_op_getxattrs(Handle, *mut Handle, *mut c_int);
    fn rados_read_op_stat(Handle, *mut u64, *mut libc::time_t, *mut c_int);
    fn rados_aio_read_op_operate(Handle, Handle, Handle, *const c_char, c_int) -> c_int;
    fn rados_getxattrs_next(Handle, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    fn rados_getxattrs_end(Handle);
    fn rados_object_list_begin(Handle) -> Handle;
    fn rados_object_list_end(Handle) -> Handle;
    fn rados_object_list_is_end(Handle, Handle) -> c_int;
    fn rados_object_list_cursor_free(Handle, Handle);
    fn rados_object_list(Handle, Handle, Handle, usize, *const c_char, usize, *mut ListItem, *mut Handle) -> c_int;
    fn rados_object_list_free(usize, *mut ListItem);
    fn rados_mon_command(Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
    fn rados_buffer_free(*mut c_char);
}

/// Loads the library, once; an error says what to install.
fn functions() -> Result<&'static Functions, String> {
    static LOADED: OnceLock<Functions> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let found = load(LIBRARY)?;
    Ok(LOADED.get_or_init(|| found))
}

fn load(library: &str) -> Result<Functions, String> {
    let failed = |error: libloading::Error| {
        format!(
            "Ceph's client library cannot be used ({error}); install the package librados2 \
             on this host"
        )
    };
    // SAFETY: the initialisers of librados need nothing that a program without it
    // would not have.
    let library = unsafe { libloading::Library::new(library) }.map_err(failed)?;
    let found = Functions::find(&library).map_err(failed)?;
    // For ever: it has threads, and handlers for the end of the process.
    std::mem::forget(library);
    Ok(found)
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// There is no library.
    Library(String),
    /// A step that failed, and with what.
    Step(&'static str, Errno),
    /// There is no such pool.
    NoPool,
}

/// Requests that have not ended.
#[derive(Default)]
struct Pending {
    count: Mutex<usize>,
    none: Condvar,
}

impl Pending {
    fn begin(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn end(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let none = self.none.wait_while(count, |count| *count > 0);
        drop(none.unwrap_or_else(PoisonError::into_inner));
    }
}

thread_local! {
    /// Whether this is a thread of librados that is telling of an answer.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

/// What librados is to do when a request has ended: with its return value.
type Finish = Box<dyn FnOnce(c_int) + Send>;

/// What a request leaves with librados.
struct Request {
    finish: Finish,
    pending: Arc<Pending>,
    functions: &'static Functions,
}

/// Called by librados, once for each request that it took.
unsafe extern "C" fn completed(completion: Handle, request: *mut c_void) {
    // SAFETY: `hand_over` has leaked it for this completion, which is called once.
    let request = unsafe { Box::from_raw(request.cast::<Request>()) };
    // SAFETY: the completion lives until this function returns.
    let value = unsafe { (request.functions.rados_aio_get_return_value)(completion) };
    let before = IS_TELLING.replace(true);
    (request.finish)(value);
    IS_TELLING.set(before);
    request.pending.end();
}

/// A pointer that goes with a request to the thread that ends it.
struct Sent<T>(*mut T);

// SAFETY: what it points to belongs to the request, and one thread at a time has
// that.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    fn take(self) -> *mut T {
        self.0
    }
}

/// Handles of one connection; dropping them ends it.
struct Handles {
    functions: &'static Functions,
    cluster: Handle,
    /// Null until there is one.
    io: Handle,
    pending: Arc<Pending>,
}

// SAFETY: librados' handles may be used by several threads at once
// (`librados.h`); only `drop` ends them, which has them alone.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Drop for Handles {
    fn drop(&mut self) {
        self.pending.wait();
        // SAFETY: no request is under way, and nobody else has the handles.
        unsafe {
            if !self.io.is_null() {
                (self.functions.rados_ioctx_destroy)(self.io);
            }
            (self.functions.rados_shutdown)(self.cluster);
        }
    }
}

/// A connection to a namespace of a pool.
pub(crate) struct Connection {
    pool: String,
    /// Taken only by `drop`.
    handles: Option<Handles>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let handles = self.handles.take();
        if IS_TELLING.get() {
            // The thread that this is would wait for itself.
            #[expect(
                clippy::disallowed_methods,
                reason = "it lasts as long as a connection takes to be closed"
            )]
            let closing = std::thread::Builder::new()
                .name("rados-close".to_owned())
                .spawn(move || drop(handles));
            // Without a thread for it, it ends here, or not at all.
            drop(closing);
        }
    }
}

/// Text for librados; what has a zero byte in it names nothing.
fn text(text: &str) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno(libc::EINVAL))
}

fn done(value: c_int) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| Errno(value.saturating_neg()))
}

impl Connection {
    /// Connects, which takes as long as the cluster takes, or the settings say.
    pub(crate) fn to(
        pool: &str,
        namespace: &str,
        settings: &Settings,
    ) -> Result<Self, ConnectError> {
        let functions = functions().map_err(ConnectError::Library)?;
        let step = |name, value| match done(value) {
            Ok(_) => Ok(()),
            Err(errno) => Err(ConnectError::Step(name, errno)),
        };
        let named =
            |name: &str| text(name).map_err(|errno| ConnectError::Step("read its URL", errno));
        let user = named(&settings.user)?;
        let mut cluster = ptr::null_mut();
        // SAFETY: the texts end in a zero, and live as long as the call.
        let created = unsafe {
            (functions.rados_create2)(&raw mut cluster, c"ceph".as_ptr(), user.as_ptr(), 0)
        };
        step("use librados", created)?;
        let mut handles = Handles {
            functions,
            cluster,
            io: ptr::null_mut(),
            pending: Arc::default(),
        };
        let file = settings.file.as_deref().map(named).transpose()?;
        let path = file.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: as above; no path means the usual ones.
        let read = unsafe { (functions.rados_conf_read_file)(cluster, path) };
        step("read ceph.conf", read)?;
        // SAFETY: as above; no name means CEPH_ARGS.
        let parsed = unsafe { (functions.rados_conf_parse_env)(cluster, ptr::null()) };
        step("read CEPH_ARGS", parsed)?;
        for (name, value) in place::TIMES_MAX {
            handles
                .limit(name, value)
                .map_err(|errno| ConnectError::Step("use librados", errno))?;
        }
        // SAFETY: the handle is that of a cluster that is not connected.
        step("connect", unsafe { (functions.rados_connect)(cluster) })?;
        let (name, namespace) = (named(pool)?, named(namespace)?);
        // SAFETY: the cluster is connected; the text as above.
        let opened =
            unsafe { (functions.rados_ioctx_create)(cluster, name.as_ptr(), &raw mut handles.io) };
        match step("open the pool", opened) {
            Err(ConnectError::Step(_, Errno(libc::ENOENT))) => return Err(ConnectError::NoPool),
            other => other?,
        }
        // SAFETY: the pool is open; the text as above.
        unsafe { (functions.rados_ioctx_set_namespace)(handles.io, namespace.as_ptr()) };
        Ok(Self {
            pool: pool.to_owned(),
            handles: Some(handles),
        })
    }

    fn handles(&self) -> &Handles {
        self.handles.as_ref().expect("it is taken by drop only")
    }

    /// What the monitors answer to a command. It waits.
    pub(crate) fn ask_monitors(&self, command: &str) -> Result<Vec<u8>, Errno> {
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
        // SAFETY: what librados has allocated has so many bytes, and is freed once.
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

impl Handles {
    /// Limits a time that the configuration leaves without a limit.
    fn limit(&self, option: &str, value: &str) -> Result<(), Errno> {
        let (option, value) = (text(option)?, text(value)?);
        let mut set = [0_u8; 64];
        // SAFETY: there is room for as many bytes as is said, and a zero at the end
        // is written with them.
        let got = unsafe {
            (self.functions.rados_conf_get)(
                self.cluster,
                option.as_ptr(),
                set.as_mut_ptr().cast(),
                set.len(),
            )
        };
        let set = CStr::from_bytes_until_nul(&set)
            .ok()
            .and_then(|text| text.to_str().ok());
        let is_limited = set
            .and_then(|text| text.parse::<f64>().ok())
            .is_some_and(|seconds| seconds > 0.0);
        if got == 0 && is_limited && option.as_c_str() != c"client_mount_timeout" {
            return Ok(());
        }
        // SAFETY: the texts end in a zero.
        done(unsafe {
            (self.functions.rados_conf_set)(self.cluster, option.as_ptr(), value.as_ptr())
        })
        .map(drop)
    }

    fn add(&self, operation: Handle, change: &Change<'_>) -> Result<(), Errno> {
        let functions = self.functions;
        let bytes_of = |bytes: &[u8]| (bytes.as_ptr().cast::<c_char>(), bytes.len());
        match *change {
            // SAFETY: for all: the operation is live, texts end in a zero, and what
            // is pointed to is copied before the call returns.
            Change::Create => unsafe {
                (functions.rados_write_op_create)(operation, EXCLUSIVE, ptr::null());
            },
            Change::MustExist => unsafe { (functions.rados_write_op_assert_exists)(operation) },
            Change::Expect {
                object_bytes,
                write_bytes,
            } => unsafe {
                (functions.rados_write_op_set_alloc_hint2)(
                    operation,
                    object_bytes,
                    write_bytes,
                    HINTS,
                );
            },
            Change::MustBe(bytes) => {
                // Behind its end an object is compared as if zeroes lay there: with one
                // of them, nothing else can follow.
                let bytes = [bytes, &[0]].concat();
                let (bytes, length) = bytes_of(&bytes);
                // SAFETY: as above; the whole operation says if they differ.
                unsafe {
                    (functions.rados_write_op_cmpext)(operation, bytes, length, 0, ptr::null_mut());
                }
            }
            Change::MustHave(name, value) => {
                let (name, (value, length)) = (text(name)?, bytes_of(value));
                // SAFETY: as above.
                unsafe {
                    (functions.rados_write_op_cmpxattr)(
                        operation,
                        name.as_ptr(),
                        EQUAL,
                        value,
                        length,
                    );
                }
            }
            Change::Set(name, value) => {
                let (name, (value, length)) = (text(name)?, bytes_of(value));
                // SAFETY: as above.
                unsafe {
                    (functions.rados_write_op_setxattr)(operation, name.as_ptr(), value, length);
                }
            }
            Change::Write(offset, bytes) => {
                let (bytes, length) = bytes_of(bytes);
                // SAFETY: as above.
                unsafe { (functions.rados_write_op_write)(operation, bytes, length, offset) };
            }
            Change::Replace(bytes) => {
                let (bytes, length) = bytes_of(bytes);
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

    /// Hands a request over. `finish` is called when it has ended, or at once if
    /// librados does not take it.
    fn hand_over(&self, finish: Finish, begin: impl FnOnce(Handle) -> c_int) {
        let request = Box::into_raw(Box::new(Request {
            finish,
            pending: Arc::clone(&self.pending),
            functions: self.functions,
        }));
        self.pending.begin();
        let mut completion = ptr::null_mut();
        // SAFETY: `completed` takes the request back.
        let made = unsafe {
            (self.functions.rados_aio_create_completion)(
                request.cast(),
                Some(completed),
                None,
                &raw mut completion,
            )
        };
        let begun = done(made).and_then(|_| {
            let begun = done(begin(completion));
            // SAFETY: it is not used here again; librados keeps it for itself.
            unsafe { (self.functions.rados_aio_release)(completion) };
            begun
        });
        if let Err(errno) = begun {
            // SAFETY: librados did not take it, and will not call `completed`.
            let request = unsafe { Box::from_raw(request) };
            (request.finish)(errno.0.saturating_neg());
            request.pending.end();
        }
    }
}

impl Pool for Connection {
    fn change(&self, name: &str, changes: &[Change<'_>], told: Told<()>) {
        let handles = self.handles();
        let functions = handles.functions;
        let finish: Finish = Box::new(move |value| told(done(value).map(drop)));
        // SAFETY: it allocates a list of changes.
        let operation = unsafe { (functions.rados_create_write_op)() };
        let added = changes
            .iter()
            .try_for_each(|change| handles.add(operation, change));
        match added.and_then(|()| text(name)) {
            Err(errno) => finish(errno.0.saturating_neg()),
            Ok(name) => handles.hand_over(finish, |completion| {
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

    fn read(&self, name: &str, offset: u64, length: usize, told: ToldBytes) {
        let handles = self.handles();
        let name = match text(name) {
            Err(errno) => return told(Err(errno)),
            Ok(name) => name,
        };
        let mut buffer = vec![0_u8; length];
        let bytes = buffer.as_mut_ptr();
        // The request has the buffer, which stays where it is.
        let finish: Finish = Box::new(move |value| {
            told(done(value).map(|read| &buffer[..read.min(length)]));
        });
        handles.hand_over(finish, |completion| {
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

    fn inspect(&self, name: &str, told: Told<Inspected>) {
        /// What librados fills.
        struct Filled {
            attributes: Handle,
            size: u64,
            time: libc::time_t,
            results: [c_int; 2],
        }
        let handles = self.handles();
        let functions = handles.functions;
        let name = match text(name) {
            Err(errno) => return told(Err(errno)),
            Ok(name) => name,
        };
        let filled = Box::into_raw(Box::new(Filled {
            attributes: ptr::null_mut(),
            size: 0,
            time: 0,
            results: [0; 2],
        }));
        // SAFETY: it allocates a list of questions; the places of the answers live
        // until the request ends.
        let operation = unsafe {
            let operation = (functions.rados_create_read_op)();
            (functions.rados_read_op_getxattrs)(
                operation,
                &raw mut (*filled).attributes,
                &raw mut (*filled).results[0],
            );
            (functions.rados_read_op_stat)(
                operation,
                &raw mut (*filled).size,
                &raw mut (*filled).time,
                &raw mut (*filled).results[1],
            );
            operation
        };
        let (sent, sent_operation) = (Sent(filled), Sent(operation));
        let finish: Finish = Box::new(move |value| {
            // SAFETY: the request has ended: nobody else has it.
            let filled = unsafe { Box::from_raw(sent.take()) };
            let attributes = match filled.attributes.is_null() {
                true => Vec::new(),
                // SAFETY: librados has made the list, and nobody else has it.
                false => unsafe { attributes_in(functions, filled.attributes) },
            };
            // SAFETY: the request has ended.
            unsafe { (functions.rados_release_read_op)(sent_operation.take()) };
            let [first, second] = filled.results;
            let answered = done(value).and(done(first)).and(done(second));
            told(answered.map(|_| Inspected {
                size: filled.size,
                attributes,
            }));
        });
        handles.hand_over(finish, |completion| {
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
                // SAFETY: librados has filled it: so many bytes lie there.
                let name =
                    unsafe { std::slice::from_raw_parts(item.oid.cast::<u8>(), item.oid_length) };
                // A name that is no text is none of ours.
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
        let answer = self.ask_monitors(r#"{"prefix":"df","format":"json"}"#)?;
        Ok(free_in(&answer, &self.pool))
    }
}

/// How much more a pool takes, in an answer to `ceph df`.
fn free_in(answer: &[u8], pool: &str) -> Option<u64> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let pools = answer.get("pools")?.as_array()?;
    let found = pools.iter().find(|found| found["name"] == pool)?;
    found.get("stats")?.get("max_avail")?.as_u64()
}

/// The attributes in a list, which ends with that.
///
/// # Safety
/// The list is one of librados', and nobody uses it again.
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
        // SAFETY: a name ends in a zero; the value has so many bytes, and both
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
    // SAFETY: nobody uses it again.
    unsafe { (functions.rados_getxattrs_end)(list) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_room_is_what_the_monitors_say_of_the_pool() {
        let answer = br#"{"stats":{},"pools":[{"name":"a","stats":{"max_avail":7}},
            {"name":"b","stats":{"stored":1,"max_avail":9000000000}}]}"#;
        assert_eq!(free_in(answer, "b"), Some(9_000_000_000));
        assert_eq!(free_in(answer, "c"), None);
        assert_eq!(free_in(b"", "a"), None);
    }

    #[test]
    fn without_the_library_the_error_says_what_to_install() {
        let Err(error) = load("librados-that-is-not-there.so.2") else {
            panic!("there is no such library");
        };
        assert!(error.contains("install the package librados2"), "{error}");
    }
}
