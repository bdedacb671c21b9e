//! Packets over a Unix socket, one message each, the daemon's with a descriptor or without. The daemon
//! itself takes none; see [`refuse_descriptors`] for what becomes of those that are sent all the same.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::protocol::MESSAGE_MAX;

/// A socket of the right kind.
pub fn open() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// A socket that is connected to who listens at a path. Who does not accept in this time does not
/// answer either.
pub fn connect(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let socket = open()?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    let address = SocketAddrUnix::new(path)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// Has the kernel refuse descriptors that somebody sends to whoever is accepted here, from Linux 6.16
/// on. Before, one that was not taken is closed by who did not take it, which can last.
pub fn refuse_descriptors(listener: impl AsFd) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let off: libc::c_int = 0;
    // SAFETY: an open socket, and a number to read.
    unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// The user and the number of the process at the other end; the number is 0 if that process can't be
/// seen from here.
pub fn peer(socket: impl AsFd) -> io::Result<(u32, i32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: an open socket, and room for what is asked for.
    let code = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if code == 0 { Ok((peer.uid, peer.pid)) } else { Err(io::Error::last_os_error()) }
}

/// Sends a message, with a descriptor if there is one. Fails at once rather than wait for a reader.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let along: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !along.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&along)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// A message that came.
#[derive(Debug)]
pub struct Received {
    /// Its bytes; none if it was too long.
    pub bytes: Option<Vec<u8>>,
    /// What came along.
    pub descriptor: Option<OwnedFd>,
}

/// Takes the next message; nothing at the end. Only with `take` are descriptors taken.
pub fn receive(socket: impl AsFd, take: bool) -> io::Result<Option<Received>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let space: &mut [MaybeUninit<u8>] = if take { &mut space } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(&socket, &mut slices, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut along) = message {
            descriptor = along.next();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    let whole = !received.flags.contains(ReturnFlags::TRUNC);
    Ok(Some(Received { bytes: whole.then_some(bytes), descriptor }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn peer_of_a_pair_then_this_process() {
        let (here, _there) = pair();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(peer(&here).unwrap(), (own, std::process::id().cast_signed()));
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn message_when_sent_with_a_descriptor_then_both_come_and_the_end_is_seen() {
        let (here, there) = pair();
        let file = tempfile::tempfile().unwrap();
        send(&here, b"hello", Some(file.as_fd())).unwrap();
        send(&here, &[7; MESSAGE_MAX + 1], None).unwrap();
        drop(here);
        let first = receive(&there, true).unwrap().unwrap();
        assert_eq!(first.bytes.as_deref(), Some(b"hello".as_slice()));
        let came = File::from(first.descriptor.unwrap()).metadata().unwrap();
        assert_eq!(came.ino(), file.metadata().unwrap().ino());
        let second = receive(&there, true).unwrap().unwrap();
        assert!(second.bytes.is_none() && second.descriptor.is_none());
        assert!(receive(&there, true).unwrap().is_none());
    }

    #[test]
    fn descriptor_when_nobody_wants_it_then_it_is_not_opened() {
        let (here, there) = pair();
        let file = tempfile::tempfile().unwrap();
        let before = open_descriptors();
        for _ in 0..100 {
            send(&here, b"take this", Some(file.as_fd())).unwrap();
            let received = receive(&there, false).unwrap().unwrap();
            assert!(received.bytes.is_some() && received.descriptor.is_none());
        }
        // Other tests open some as well, but not a hundred.
        assert!(open_descriptors() < before + 50);
    }

    #[test]
    fn send_when_nobody_reads_then_fails_and_does_not_wait() {
        let (here, _there) = pair();
        let full = (0..100_000).find_map(|_| send(&here, &[0; 200], None).err());
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
