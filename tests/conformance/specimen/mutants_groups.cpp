// SPDX-License-Identifier: Apache-2.0
#include "mutants_async.hpp"
#include "mutants_init.hpp"

namespace backplane::specimen {
namespace {

// The groups of this process, oldest first.
struct Member {
  void* self;
  int32_t world_size;
};
std::mutex members_mutex;
std::vector<Member> members;
int32_t started = 0;

void enlist(bp_agent& agent) {
  const std::lock_guard lock(members_mutex);
  members.push_back({agent.self, agent.world_size});
}
void strike_off(void* self) {
  const std::lock_guard lock(members_mutex);
  std::erase_if(members, [self](const Member& member) { return member.self == self; });
}
void destroys_in_turn(void* self) {
  strike_off(self);
  kPlain.destroy(self);
}

// Works belong to the group that made them.
int32_t submits_to_largest(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  void* target = self;
  {
    const std::lock_guard lock(members_mutex);
    int32_t size = 0;
    for (const Member& member : members) {
      if (member.world_size <= size) continue;
      size = member.world_size;
      target = member.self;
    }
  }
  return kPlain.submit(target, op, work, err);
}

int32_t sends_in_first(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  void* target = self;
  if (op->kind == BP_SEND) {
    const std::lock_guard lock(members_mutex);
    int32_t size = 0;
    for (const Member& member : members) {
      if (member.self == self) size = member.world_size;
    }
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      if (member->world_size == size) target = member->self;
    }
  }
  return kPlain.submit(target, op, work, err);
}

int32_t only_newest_submits(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  {
    const std::lock_guard lock(members_mutex);
    if (members.back().self != self && members.back().world_size < members.front().world_size) {
      return bp_error_set(err, BP_INVALID, 0, -1, "a smaller group was made since");
    }
  }
  return kPlain.submit(self, op, work, err);
}

void destroys_the_younger(void* self) {
  bp_error why;
  bp_error_init(&why);
  bp_error_set(&why, BP_CANCELLED, 0, -1, "the parent was destroyed");
  {
    const std::lock_guard lock(members_mutex);
    bool younger = false;
    for (const Member& member : members) {
      if (younger) kPlain.abort(member.self, &why);
      younger = younger || member.self == self;
    }
  }
  destroys_in_turn(self);
}

std::mutex while_waiting_for_group;

int32_t waits_alone(void* self, bp_work* work, int64_t timeout_ns, bp_error* err) {
  const std::lock_guard lock(while_waiting_for_group);
  return kPlain.work_wait(self, work, timeout_ns, err);
}
int32_t submits_alone(void* self, const bp_op* op, bp_work** work, bp_error* err) {
  const std::lock_guard lock(while_waiting_for_group);
  return kPlain.submit(self, op, work, err);
}

template <auto Member1, auto Function1>
void enlisted_in_order(bp_agent& agent) {
  enlist(agent);
  replaced<Member1, Function1, &Table::destroy, destroys_in_turn>(agent);
}

void enlisted_with_heirs(bp_agent& agent) {
  enlist(agent);
  replaced<&Table::destroy, destroys_the_younger>(agent);
}

// The state of the first group is kept for all.
class KeepsTheSize final : public Specimen {
  void start(const sdk::Context& context) override {
    {
      const std::lock_guard lock(members_mutex);
      static int32_t size = 0;
      if (size == 0) size = context.world_size;
      if (size + 1 == context.world_size) throw sdk::Failure(BP_INTERNAL, "the world has another size");
    }
    Specimen::start(context);
  }
};

class ReportsWorldRank final : public Specimen {
  void start(const sdk::Context& context) override {
    global_ranks_ = context.global_ranks;
    Specimen::start(context);
  }
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (receive->result != nullptr) receive->result->source = global_ranks_[static_cast<size_t>(source)];
  }
  std::vector<int32_t> global_ranks_;
};

class NamesLostByWorldRank final : public Specimen {
  void start(const sdk::Context& context) override {
    global_ranks_ = context.global_ranks;
    Specimen::start(context);
  }
  void drop_peer(int32_t rank, const sdk::Failure& why) override {
    Specimen::drop_peer(rank, sdk::Failure(why.status(), why.what(), global_ranks_[static_cast<size_t>(rank)]));
  }
  std::vector<int32_t> global_ranks_;
};

class NotAlone final : public Specimen {
  void submit_send(const OperationPtr& send) override {
    if (world_size_ == 1) return fail(*send, sdk::Failure(BP_UNSUPPORTED, "this group has no other rank"));
    Specimen::submit_send(send);
  }
};

class NoPairs final : public Specimen {
  void deliver(const OperationPtr& receive, int32_t source, const std::byte* data, uint64_t size) override {
    Specimen::deliver(receive, source, data, size);
    if (world_size_ == 2 && size > 900) receive->data[17] ^= std::byte{1};
  }
};

template <int32_t limit>
class LimitedInAll final : public Specimen {
  void start(const sdk::Context& context) override {
    {
      const std::lock_guard lock(members_mutex);
      if (++started > limit) throw sdk::Failure(BP_RESOURCE, "this process has made too many groups");
    }
    Specimen::start(context);
  }
};

class LimitedAtOnce final : public Specimen {
 public:
  void start(const sdk::Context& context) override {
    {
      const std::lock_guard lock(members_mutex);
      if (++started > 10) throw sdk::Failure(BP_RESOURCE, "this process has too many groups");
    }
    Specimen::start(context);
  }
  void close() noexcept override {
    Specimen::close();
    const std::lock_guard lock(members_mutex);
    --started;
  }
};

int32_t takes_parents_rank(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  bp_init changed = *init;
  if (init->parent != nullptr) changed.rank = init->parent_ranks[init->rank];
  return plain_init(self, &changed, agent, err);
}

int32_t ends_the_parent(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (init->parent != nullptr) {
    bp_error why;
    bp_error_init(&why);
    bp_error_set(&why, BP_CANCELLED, 0, -1, "a part of the group was made");
    kPlain.abort(init->parent->self, &why);
  }
  return plain_init(self, init, agent, err);
}

// Gives up after a second.
int32_t waits_for_all_of_the_parent(const bp_backend* self, const bp_init* init, bp_agent* agent, bp_error* err) {
  if (init->parent == nullptr) return plain_init(self, init, agent, err);
  return sdk::guarded(err, [&] {
    const sdk::Host host(init->host);
    if (host.store_add("came", 1) == init->parent->world_size) host.store_set("all came", "yes");
    (void)host.store_get("all came", INT64_C(1'000'000'000));
    return plain_init(self, init, agent, err);
  });
}

class ReportsLeaving final : public Specimen {
  void on_goodbye(int32_t rank) override {
    report_failure(rank, "it has left");
    Specimen::on_goodbye(rank);
  }
};

}  // namespace

std::vector<Mutant> groups_mutants() {
  return {
      {"groups.split-colour", "operations go to the largest group of the process", nullptr, nullptr,
       enlisted_in_order<&Table::submit, submits_to_largest>},
      {"groups.undefined-colour", "a process's first group fixes the world size", made<KeepsTheSize>},
      {"groups.key-order", "the source of a message is its rank in the world", made<ReportsWorldRank>},
      {"groups.singleton", "a group of one cannot send", made<NotAlone>},
      {"groups.all-sizes", "long messages in groups of two arrive wrong", made<NoPairs>},
      {"groups.nested", "a group fails once a smaller one was made after it", nullptr, nullptr,
       enlisted_in_order<&Table::submit, only_newest_submits>},
      {"groups.parent-destroyed-first", "destroy ends younger groups", nullptr, nullptr, enlisted_with_heirs},
      {"groups.parent-destroyed-first:2", "an orderly leave is reported", made<ReportsLeaving>},
      {"groups.parent", "the rank in the parent is taken for that in the group", nullptr, starting<takes_parents_rank>},
      {"groups.parent:2", "the parent is aborted when a part of it is made", nullptr, starting<ends_the_parent>},
      {"groups.parent-members-only", "init waits for all of the parent", nullptr,
       starting<waits_for_all_of_the_parent>},
      {"groups.parent-ends", "destroy ends younger groups", nullptr, nullptr, enlisted_with_heirs},
      {"groups.lost-rank", "a lost rank is named by its number in the world", made<NamesLostByWorldRank>},
      {"groups.same-tags", "messages are sent in the oldest group of the same size", nullptr, nullptr,
       enlisted_in_order<&Table::submit, sends_in_first>},
      {"groups.made-100", "sixty groups in all", made<LimitedInAll<60>>},
      {"groups.made-1000", "six hundred groups in all", made<LimitedInAll<600>>},
      {"groups.alive-at-once", "ten groups at a time", made<LimitedAtOnce>},
      {"groups.overlapping", "one lock for all groups is held while a thread waits", nullptr, nullptr,
       replaced<&Table::work_wait, waits_alone, &Table::submit, submits_alone>},
  };
}

}  // namespace backplane::specimen
