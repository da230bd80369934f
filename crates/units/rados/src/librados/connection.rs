//! A connection to a cluster, and submitting requests.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::library::{Functions, Handle, done, functions, text};
use crate::location::{self, Settings};
use crate::pool::Errno;

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// The library cannot be loaded.
    Library(String),
    /// A step failed.
    Step(&'static str, Errno),
    /// The pool does not exist.
    NoPool,
}

/// The number of requests under way.
#[derive(Default)]
struct Pending {
    count: Mutex<usize>,
    none: Condvar,
}

impl Pending {
    fn begin(&self) {
        *self.count.lock() += 1;
    }

    fn end(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    fn wait(&self) {
        let mut count = self.count.lock();
        self.none.wait_while(&mut count, |count| *count > 0);
    }
}

thread_local! {
    /// Whether this is a thread of librados inside a callback.
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Called with the return value when a request has ended.
pub(super) type Finish = Box<dyn FnOnce(c_int) + Send>;

/// The state of a request, owned by librados meanwhile.
struct Request {
    finish: Finish,
    pending: Arc<Pending>,
    functions: &'static Functions,
}

/// Called by librados, once for each request that it accepted.
unsafe extern "C" fn completed(completion: Handle, request: *mut c_void) {
    // SAFETY: `submit` has leaked it for this completion, which is called once.
    let request = unsafe { Box::from_raw(request.cast::<Request>()) };
    // SAFETY: the completion lives until this function returns.
    let value = unsafe { (request.functions.rados_aio_get_return_value)(completion) };
    let before = IS_IN_CALLBACK.replace(true);
    (request.finish)(value);
    IS_IN_CALLBACK.set(before);
    request.pending.end();
}

/// Handles of one connection; dropping them ends it.
pub(super) struct Handles {
    pub(super) functions: &'static Functions,
    pub(super) cluster: Handle,
    /// Null until the pool is open.
    pub(super) io: Handle,
    pending: Arc<Pending>,
}

// SAFETY: librados' handles may be used by several threads at once
// (`librados.h`); only `drop` ends them, which has exclusive access.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

impl Drop for Handles {
    fn drop(&mut self) {
        self.pending.wait();
        // SAFETY: no request is under way, and access is exclusive.
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
    pub(super) pool: String,
    /// Taken only by `drop`.
    handles: Option<Handles>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let handles = self.handles.take();
        if IS_IN_CALLBACK.get() {
            // Closing waits for callbacks, and this is one.
            #[expect(
                clippy::disallowed_methods,
                reason = "it lasts as long as closing a connection takes"
            )]
            let closing = std::thread::Builder::new()
                .name("rados-close".to_owned())
                .spawn(move || drop(handles));
            // If no thread can be started, the handles are dropped here.
            drop(closing);
        }
    }
}

impl Connection {
    /// Connects. Waits for the cluster, up to the timeouts.
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
        for (name, value) in location::TIMEOUTS_S {
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

    pub(super) fn handles(&self) -> &Handles {
        self.handles.as_ref().expect("only `drop` takes it")
    }
}

impl Handles {
    /// Sets a timeout that the configuration does not set.
    fn limit(&self, option: &str, value: &str) -> Result<(), Errno> {
        let (option, value) = (text(option)?, text(value)?);
        let mut set = [0_u8; 64];
        // SAFETY: the buffer has the given length, which includes the final zero.
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

    /// Submits a request. `finish` is called when it has ended, or at once if librados rejects
    /// it.
    pub(super) fn submit(&self, finish: Finish, begin: impl FnOnce(Handle) -> c_int) {
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
            // SAFETY: it is not used here again; librados holds a reference of its own.
            unsafe { (self.functions.rados_aio_release)(completion) };
            begun
        });
        if let Err(errno) = begun {
            // SAFETY: librados rejected it and will not call `completed`.
            let request = unsafe { Box::from_raw(request) };
            (request.finish)(errno.0.saturating_neg());
            request.pending.end();
        }
    }
}
