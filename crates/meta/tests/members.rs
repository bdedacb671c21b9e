//! Several nodes on one namespace: who is alive, who owns what, whose work is whose.

mod servers;

use forebay_meta::{
    Answer, ChangeRight, Error, FileKind, Fingerprint, Ino, Link, MetaStore, NameIn, NewInode,
    NodeName, Options, Ownership, Queue, RecallAim, Record, Redis, RedisOptions, Seq, Timestamp,
};
use servers::Servers;

fn now() -> Timestamp {
    Timestamp::new(1_700_000_000, 0)
}

fn open(servers: &Servers, id: &str) -> MetaStore {
    let address = format!("redis://127.0.0.1:{}/members", servers.port(0));
    let engine = Redis::open(&address, &RedisOptions::default()).expect("the server runs");
    let name = NodeName { id: id.into(), address: "here".into() };
    let options = Options { node: Some(name), ..Options::default() };
    MetaStore::open(Box::new(engine), &options).expect("an empty or good namespace")
}

fn file(store: &MetaStore, name: &[u8]) -> Ino {
    let new = NewInode::new(FileKind::Regular, 0o644, 0, 0);
    store.create(Ino::ROOT, name, new, now()).expect("a free name").ino
}

fn backlog(store: &MetaStore) -> Vec<Ino> {
    store.backlog(Seq(0), 100).expect("readable").into_iter().map(|(_, ino)| ino).collect()
}

fn is_owned(ownership: &Ownership) -> bool {
    matches!(ownership, Ownership::Mine(_))
}

fn reconcile(store: &MetaStore, ino: Ino) {
    let record = store.get_now(ino).expect("there");
    let all = |record: &mut Record| {
        record.backing.links = record.links.clone();
        record.mark_clean();
    };
    assert_ne!(store.begin_work(ino, &|_| false).expect("readable"), ChangeRight::Others);
    store.reconciled(ino, record.change, all).expect("stored");
    store.end_work(ino).expect("stored");
}

#[test]
fn node_when_it_starts_again_then_keeps_its_number_and_the_one_before_is_fenced() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let first = open(&servers, "a");
    let other = open(&servers, "b");
    assert!(first.beat().unwrap() && other.beat().unwrap());
    let again = open(&servers, "a");
    let (before, after) = (first.member().unwrap(), again.member().unwrap());
    assert_eq!(before.node, after.node);
    assert!(before.epoch < after.epoch);
    assert_ne!(other.member().unwrap().node, after.node);
    assert!(!first.beat().unwrap(), "fenced");
    assert!(again.beat().unwrap() && other.beat().unwrap());
    let members = other.members().unwrap();
    assert_eq!(members.iter().map(|member| member.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let beat = members[0].beat;
    again.beat().unwrap();
    assert_eq!(other.members().unwrap()[0].beat, beat + 1);
    assert!(again.leave().unwrap());
    assert!(other.members().unwrap()[0].left);
}

#[test]
fn heartbeats_when_there_are_many_nodes_then_no_other_node_is_told() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let state = |name: &str| -> u64 {
        let said = servers.command(0, &["INFO", "stats"]);
        let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.expect(name).trim().parse().expect("a number")
    };
    let a = open(&servers, "a");
    assert!(a.beat().unwrap());
    let beats = |times: u64| {
        let before = (state("total_net_output_bytes"), state("total_commands_processed"));
        for _ in 0..times {
            assert!(a.beat().unwrap());
        }
        let bytes = state("total_net_output_bytes") - before.0;
        (bytes, state("total_commands_processed") - before.1)
    };
    beats(500);
    let others: Vec<MetaStore> = (0..20).map(|at| open(&servers, &format!("n{at}"))).collect();
    let heard = || {
        let said = servers.command(0, &["CLIENT", "LIST"]);
        let flags = said.split_whitespace().filter_map(|word| word.strip_prefix("flags="));
        flags.filter(|flags| flags.contains('t')).count()
    };
    servers.wait("changes are heard", |_| heard() > 20);
    // Each of the others would be told in some 60 bytes, once for each.
    let (bytes, _) = beats(1000);
    assert!(bytes < 1000 * 20 * 30, "{bytes} bytes were sent");
    // What they do need to hear they still do.
    let seen = others[0].members().unwrap();
    file(&others[1], b"new");
    assert!(others[2].lookup(Ino::ROOT, b"new").unwrap().is_some());
    assert!(seen.iter().any(|member| member.id == "a" && member.beat > 1500));
}

#[test]
fn heartbeat_when_nobody_else_changed_the_entry_then_one_request() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    assert!(a.beat().unwrap());
    let before = a.round_trips().executes;
    for _ in 0..10 {
        assert!(a.beat().unwrap());
    }
    assert_eq!(a.round_trips().executes - before, 10);
    assert!(a.listen_at("tcp://here:1").unwrap() && a.beat().unwrap());
    // Others take something from it: that is not overwritten.
    let me = a.member().unwrap().node;
    let entry = |store: &MetaStore| {
        store.members().unwrap().into_iter().find(|member| member.node == me).unwrap()
    };
    assert_eq!(entry(&b).reach, "tcp://here:1");
    assert!(b.expel(&entry(&b)).unwrap());
    assert!(!a.beat().unwrap() && !a.beat().unwrap(), "it is fenced");
    assert!(entry(&b).expelled);
}

#[test]
fn backlog_when_nodes_share_a_namespace_then_each_has_its_own() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let (one, two) = (file(&a, b"one"), file(&b, b"two"));
    assert_eq!((backlog(&a), backlog(&b)), (vec![one], vec![two]));
    drop(a);
    let a = open(&servers, "a");
    assert_eq!(backlog(&a), [one], "after its start it has what it had, and nothing of others");
    // What another has done in one's place is forgotten when it is looked at.
    reconcile(&b, one);
    a.doubt_place(one);
    assert_eq!(backlog(&a), []);
    assert_eq!((a.backlog_len(), b.backlog_len()), (0, 1));
    assert!(a.check(false).unwrap().is_clean());
}

#[test]
fn ownership_when_another_has_it_then_it_has_to_give_it_up_first() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let ino = file(&a, b"f");
    reconcile(&a, ino);
    assert!(is_owned(&a.take_ownership(ino).unwrap()));
    assert!(
        matches!(b.take_ownership(ino).unwrap(), Ownership::Other(who) if Some(who) == a.member())
    );
    let dirty = |record: &mut Record| {
        record.mark_dirty();
        Queue::Yes
    };
    a.update(ino, None, dirty).unwrap();
    assert!(!a.give_up_ownership(ino).unwrap(), "its bytes are not in the backing store");
    assert!(b.give_up_ownership(ino).unwrap(), "it never had it");
    assert!(!is_owned(&b.take_ownership(ino).unwrap()));
    reconcile(&a, ino);
    assert_eq!(backlog(&a), [ino], "what is owned stays in its owner's backlog");
    assert!(a.give_up_ownership(ino).unwrap());
    assert_eq!(backlog(&a), []);
    assert!(is_owned(&b.take_ownership(ino).unwrap()));
    assert_eq!(backlog(&b), [ino]);
    drop(b);
    let b = open(&servers, "b");
    assert!(is_owned(&b.take_ownership(ino).unwrap()), "a later incarnation takes it over");
    assert!(!is_owned(&a.take_ownership(ino).unwrap()));
}

#[test]
fn owner_when_it_changes_a_file_that_another_queued_then_it_is_in_its_own_backlog() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let ino = file(&b, b"f");
    assert_eq!(backlog(&b), [ino]);
    assert!(is_owned(&a.take_ownership(ino).unwrap()));
    assert_eq!(backlog(&a), [ino]);
    b.doubt_place(ino);
    assert_eq!(backlog(&b), []);
    assert!(a.check(false).unwrap().is_clean());
}

#[test]
fn file_when_removed_where_it_is_not_owned_then_its_owner_keeps_it_until_it_lets_go() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let ino = file(&a, b"f");
    assert!(is_owned(&a.take_ownership(ino).unwrap()));
    let unlinked = b.unlink(Ino::ROOT, b"f", now(), false).unwrap();
    assert!(!unlinked.gone);
    b.release_orphan(ino, now()).unwrap();
    assert_eq!((a.orphans().unwrap(), b.orphans().unwrap()), (vec![ino], vec![]));
    a.release_orphan(ino, now()).unwrap();
    assert!(a.give_up_ownership(ino).unwrap());
    assert!(a.get_now(ino).is_err());
    assert!(a.check(false).unwrap().is_clean());
}

#[test]
fn work_on_an_inode_when_several_want_it_then_one_gets_it_until_it_ends_or_dies() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let ino = file(&a, b"f");
    let nobody = |_| false;
    let right = |store: &MetaStore| store.begin_work(ino, &nobody).unwrap();
    assert_eq!(right(&a), ChangeRight::Mine);
    assert_eq!(right(&b), ChangeRight::Others);
    b.end_work(ino).unwrap();
    assert_eq!(right(&b), ChangeRight::Others, "only the holder ends it");
    a.end_work(ino).unwrap();
    assert_eq!(right(&b), ChangeRight::Mine);
    let (of_b, first) = (b.member().unwrap(), a.member().unwrap());
    let from = a.begin_work(ino, &|who| Some(who) == b.member()).unwrap();
    assert_eq!(from, ChangeRight::From(of_b), "of a dead one");
    assert_eq!(right(&b), ChangeRight::Others);
    assert_eq!(right(&open(&servers, "a")), ChangeRight::Mine, "by a later incarnation");
    assert_eq!(a.member(), Some(first));
}

#[test]
fn worker_when_another_node_has_taken_its_right_then_it_announces_and_reports_nothing() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let ino = file(&a, b"f");
    let (link, other) = (Link::new(Ino::ROOT, &b"f"[..]), Link::new(Ino::ROOT, &b"g"[..]));
    let pending = Fingerprint { ino: 7, size: 3, ..Fingerprint::default() };
    let refused = |store: &MetaStore| {
        let refused = |error| matches!(error, Error::NotInHand(found) if found == ino);
        assert!(store.claim(ino, &other).is_err_and(refused));
        assert!(store.intend(ino, None, pending).is_err_and(refused));
        assert!(store.reconciled(ino, 0, |_| ()).is_err_and(refused));
    };
    refused(&a);
    assert_eq!(a.begin_work(ino, &|_| false).unwrap(), ChangeRight::Mine);
    a.claim(ino, &link).unwrap();
    a.intend(ino, None, pending).unwrap();
    // It is stopped here, for as long as others wait for nobody.
    assert_eq!(b.begin_work(ino, &|_| true).unwrap(), ChangeRight::From(a.member().unwrap()));
    refused(&a);
    b.claim(ino, &link).unwrap();
    // Bytes that another owns it does not announce either, whoever has the right to work.
    assert!(is_owned(&b.take_ownership(ino).unwrap()));
    b.update(ino, None, |record| {
        record.mark_dirty();
        Queue::Yes
    })
    .unwrap();
    assert_eq!(a.begin_work(ino, &|_| true).unwrap(), ChangeRight::From(b.member().unwrap()));
    let ahead = a.intend_ahead(ino, pending);
    assert!(matches!(ahead, Err(Error::NotInHand(_))), "{ahead:?}");
    assert!(matches!(a.intend(ino, None, pending), Err(Error::NotInHand(_))));
}

#[test]
fn mail_when_answered_then_the_asker_knows() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let (ino, node) = (Ino(77), a.member().unwrap().node);
    b.ask(node, ino, RecallAim::Bytes).unwrap();
    assert_eq!(b.answered(node, ino).unwrap(), Answer::Pending);
    let old = a.recalls(10).unwrap();
    assert_eq!((old.len(), old[0].ino, old[0].aim), (1, ino, RecallAim::Bytes));
    b.ask(node, ino, RecallAim::Ownership).unwrap();
    a.answer(&old[0], None).unwrap();
    assert_eq!(b.answered(node, ino).unwrap(), Answer::Pending, "it was asked for more since");
    let new = a.recalls(10).unwrap();
    a.answer(&new[0], Some(5)).unwrap();
    assert_eq!(b.answered(node, ino).unwrap(), Answer::Failed(5));
    assert_eq!(a.recalls(10).unwrap(), []);
    b.retract(node, ino).unwrap();
    assert_eq!(b.answered(node, ino).unwrap(), Answer::Done);
    assert!(a.check(false).unwrap().is_clean());
}

#[test]
fn records_when_others_change_them_then_asking_for_now_shows_it_at_once() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let ino = file(&a, b"f");
    for size in 1..200 {
        let grow = |record: &mut Record| {
            record.attr.size = size;
            Queue::Yes
        };
        a.update(ino, None, grow).unwrap();
        assert_eq!(b.get_now(ino).unwrap().attr.size, size);
        // An edit that changes nothing must not make what is cached look new.
        b.give_up_ownership(ino).unwrap();
        a.rename(
            NameIn::new(Ino::ROOT, b"f"),
            NameIn::new(Ino::ROOT, b"g"),
            Default::default(),
            now(),
            &|_| false,
        )
        .unwrap();
        assert!(b.lookup_now(Ino::ROOT, b"f").unwrap().is_none());
        assert_eq!(b.lookup_now(Ino::ROOT, b"g").unwrap().map(|record| record.ino), Some(ino));
        a.rename(
            NameIn::new(Ino::ROOT, b"g"),
            NameIn::new(Ino::ROOT, b"f"),
            Default::default(),
            now(),
            &|_| false,
        )
        .unwrap();
    }
}

#[test]
fn entries_found_late_when_the_directory_is_listed_then_are_not_imported() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (a, b) = (open(&servers, "a"), open(&servers, "b"));
    let print = forebay_meta::Fingerprint {
        size: 0,
        mtime: now(),
        ctime: now(),
        ino: 9,
        ..Default::default()
    };
    let mut attr = a.get(Ino::ROOT).unwrap().attr.clone();
    (attr.kind, attr.nlink) = (FileKind::Regular, 1);
    let found = |name: &[u8]| forebay_meta::Found {
        name: name.into(),
        attr: attr.clone(),
        target: None,
        fingerprint: print,
    };
    assert_eq!(b.import_unless_listed(Ino::ROOT, &[found(b"early")]).unwrap(), 1);
    a.set_listed(Ino::ROOT, print).unwrap();
    assert_eq!(b.import_unless_listed(Ino::ROOT, &[found(b"late")]).unwrap(), 0);
    assert!(b.lookup_now(Ino::ROOT, b"late").unwrap().is_none());
}

/// What programs do most is one round trip each; heartbeats are not counted, as none is sent here.
#[test]
fn file_of_a_node_when_made_found_looked_at_and_removed_then_one_round_trip_each() {
    if !servers::installed() {
        return;
    }
    let servers = Servers::single(&[]);
    let (store, other) = (open(&servers, "a"), open(&servers, "b"));
    let new = NewInode::new(FileKind::Directory, 0o755, 0, 0);
    let dir = store.create(Ino::ROOT, b"d", new, now()).expect("free").ino;
    let counted = |what: &dyn Fn()| {
        let before = store.round_trips();
        what();
        let after = store.round_trips();
        (after.executes - before.executes, after.scans - before.scans)
    };
    let create = |name: &[u8]| {
        let new = NewInode { owned: true, ..NewInode::new(FileKind::Regular, 0o644, 0, 0) };
        store.create(dir, name, new, now()).expect("free")
    };
    // The first takes a block of inode numbers.
    create(b"first");
    assert_eq!(counted(&|| drop(create(b"f"))), (1, 0), "create");
    let ino = store.lookup_now(dir, b"f").expect("works").expect("there").ino;
    assert_eq!(counted(&|| assert!(is_owned(&store.take_ownership(ino).unwrap()))), (0, 0));
    let look = || assert_eq!(store.lookup_now(dir, b"f").unwrap().expect("there").ino, ino);
    assert_eq!(counted(&look), (1, 0), "look-up");
    let miss = || assert!(store.lookup_now(dir, b"missing").unwrap().is_none());
    assert_eq!(counted(&miss), (1, 0), "look-up of what is not there");
    assert_eq!(counted(&|| drop(store.get_now(ino).unwrap())), (1, 0), "stat");
    // What another node does in between is seen by the same one look.
    let size = |size| {
        let record = other.lookup_now(dir, b"f").unwrap().expect("there");
        let resize = |record: &mut Record| {
            record.attr.size = size;
            Queue::No
        };
        other.update(record.ino, Some(now()), resize).unwrap();
    };
    size(77);
    let look = || assert_eq!(store.lookup_now(dir, b"f").unwrap().unwrap().attr.size, 77);
    assert_eq!(counted(&look), (1, 0), "look-up of what was changed elsewhere");
    assert_eq!(counted(&|| drop(store.unlink(dir, b"f", now(), false).unwrap())), (1, 0), "unlink");
    assert!(other.lookup_now(dir, b"f").unwrap().is_none());
    // A name that means another file now is found, too.
    create(b"g");
    store.lookup_now(dir, b"g").unwrap().expect("there");
    other.unlink(dir, b"g", now(), false).unwrap();
    let new = NewInode::new(FileKind::Regular, 0o600, 0, 0);
    let again = other.create(dir, b"g", new, now()).unwrap().ino;
    assert_eq!(store.lookup_now(dir, b"g").unwrap().expect("there").ino, again);
}
