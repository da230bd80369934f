//! The library: its functions as `librados.h` declares them, and loading it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::pool::Errno;

/// File name of the library. The number is that of its interface, unchanged since 2009.
const LIBRARY: &str = "librados.so.2";

pub(super) type Handle = *mut c_void;
pub(super) type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// `rados_object_list_item`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ListItem {
    pub(super) oid_length: usize,
    pub(super) oid: *mut c_char,
    pub(super) nspace_length: usize,
    pub(super) nspace: *mut c_char,
    pub(super) locator_length: usize,
    pub(super) locator: *mut c_char,
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library, as `librados.h` declares them.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
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

/// Loads the library once. The error says what to install.
pub(super) fn functions() -> Result<&'static Functions, String> {
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
    // SAFETY: the initializers of librados have no requirements.
    let library = unsafe { libloading::Library::new(library) }.map_err(failed)?;
    let found = Functions::find(&library).map_err(failed)?;
    // Never unloaded: it has threads and exit handlers.
    std::mem::forget(library);
    Ok(found)
}

/// Converts text for librados; an error if it has a zero byte.
pub(super) fn text(text: &str) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno(libc::EINVAL))
}

pub(super) fn done(value: c_int) -> Result<usize, Errno> {
    usize::try_from(value).map_err(|_| Errno(value.saturating_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_the_error_says_what_to_install() {
        let Err(error) = load("librados-that-is-not-there.so.2") else {
            panic!("there is no such library");
        };
        assert!(error.contains("install the package librados2"), "{error}");
    }
}
