use super::FreeList;

fn taken(list: &mut FreeList, count: usize) -> Vec<i64> {
    list.take(count).expect("there are enough")
}

#[test]
fn a_fresh_list_counts_up() {
    let mut list = FreeList::new(1..6, false);
    assert_eq!(taken(&mut list, 2), [1, 2]);
    assert_eq!(taken(&mut list, 3), [3, 4, 5]);
    assert_eq!(list.take(1), None);
    assert_eq!(taken(&mut list, 0), [0; 0]);
}

#[test]
fn a_batch_comes_back_in_its_order_before_older_ones_and_fresh_units() {
    let mut list = FreeList::new(1..9, false);
    taken(&mut list, 6);
    list.release(&[1, 2]);
    list.release(&[5, 3, 4]);
    assert_eq!(taken(&mut list, 4), [5, 3, 4, 1]);
    assert_eq!(taken(&mut list, 3), [2, 7, 8]);
}

#[test]
fn sorting_waits_until_the_ready_units_are_short() {
    let mut list = FreeList::new(1..9, true);
    taken(&mut list, 6);
    list.release(&[5, 2]);
    list.release(&[4]);
    assert_eq!(list.available(), 5);
    assert_eq!(taken(&mut list, 1), [7], "what was released waits");
    assert_eq!(taken(&mut list, 3), [2, 4, 5], "merged, and ascending again");
    list.release(&[3, 1]);
    assert_eq!(taken(&mut list, 3), [1, 3, 8]);
}

#[test]
fn a_refused_take_changes_nothing() {
    let mut list = FreeList::new(1..5, true);
    taken(&mut list, 4);
    list.release(&[4, 2]);
    let before = list.clone();
    assert_eq!(list.take(3), None);
    assert_eq!(list, before);
}

#[test]
fn the_end_of_the_outermost_group_releases() {
    let mut list = FreeList::new(1..5, false);
    taken(&mut list, 4);
    list.begin_group();
    list.release(&[3]);
    list.begin_group();
    list.release(&[1, 2]);
    assert_eq!((list.end_group(), list.available()), (0, 0));
    assert_eq!(list.pending(), [3, 1, 2]);
    assert_eq!((list.end_group(), list.available()), (3, 3));
    assert_eq!(list.end_group(), 0, "no group is open");
    assert_eq!(taken(&mut list, 3), [3, 1, 2]);
}
