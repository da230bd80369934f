//! [`FilterUser`]: a user that one filter of the machine has, and no other one.
//!
//! Several processes of a machine give users to filters: an agent, relays, `scree filter-server`. They have
//! no folder in common, and may end at any moment. So a user is taken by a name in the kernel:
//! a socket that has its number for a name, and no file, is one process's at a time, of
//! whatever user that is, and is nobody's when the process has ended. Nothing is ever said
//! over it, and no process of a filter inherits it.
//!
//! Whoever else on the machine takes such names keeps numbers from filters, of which there are
//! 1,048,576, and gets none by that. Names are of a network namespace: processes in several
//! ones do not see what the others have taken.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Users of filters, one each: numbers that nobody has, and that no distribution gives away.
const USERS_FROM: u32 = 1_900_000_000;
const USERS: u32 = 1 << 20;

/// See the module's head. Dropping it gives it back: when no process of this user is left.
pub(crate) struct FilterUser {
    number: u32,
    _taken: OwnedFd,
}

impl FilterUser {
    /// Of a user and its group.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// None: another one has it.
    fn take(number: u32) -> io::Result<Option<Self>> {
        let flags = SocketFlags::CLOEXEC;
        let taken = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let name = format!("scree-filter-user-{number}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        match bind(&taken, &name) {
            Ok(()) => Ok(Some(Self {
                number,
                _taken: taken,
            })),
            Err(rustix::io::Errno::ADDRINUSE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Those that a process gives to its filters.
pub(crate) struct FilterUsers {
    /// What one of before has left in the machine is not at once another one's.
    next: AtomicU32,
}

impl FilterUsers {
    /// None is taken.
    pub const fn new() -> Self {
        let next = AtomicU32::new(0);
        Self { next }
    }

    /// Takes the next one that is free.
    ///
    /// # Errors
    /// That there is none, or as the operating system says.
    pub fn take(&self) -> io::Result<FilterUser> {
        for _ in 0..USERS {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % USERS;
            if let Some(user) = FilterUser::take(USERS_FROM + next)? {
                return Ok(user);
            }
        }
        Err(io::Error::other(
            "each user that a filter may have is taken",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Each process counted from the first one: a filter of the agent's and one of a relay's had
    /// one user, and could open each other's sockets and end each other.
    #[test]
    fn two_processes_of_a_machine_give_no_user_twice() {
        let (agent, relay) = (FilterUsers::new(), FilterUsers::new());
        let mut taken = Vec::new();
        for _ in 0..20 {
            taken.push(agent.take().expect("there are many"));
            taken.push(relay.take().expect("there are many"));
        }
        let numbers: HashSet<u32> = taken.iter().map(FilterUser::number).collect();
        assert_eq!(numbers.len(), taken.len());
        assert!(numbers.iter().all(|number| *number >= USERS_FROM));

        let user = taken.pop().expect("there is one");
        let number = user.number();
        let other = FilterUser::take(number).expect("it can be asked");
        assert!(other.is_none(), "it is taken");
        drop(user);
        let other = FilterUser::take(number).expect("it can be asked");
        assert!(other.is_some(), "it was given back");
    }
}
