// SPDX-License-Identifier: Apache-2.0
#include "group/objects.hpp"

#include <numeric>

#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

constexpr uint64_t kMaxObjectBytes = UINT64_C(1) << 40;  // of all objects of one rank

class ObjectExchange {
 public:
  ObjectExchange(Group& group, uint32_t kind, int32_t root, const std::vector<std::string_view>& in, int64_t timeout_ns)
      : group_(group),
        kind_(kind),
        root_(root),
        world_(static_cast<size_t>(group.config().world_size)),
        at_root_(group.config().rank == root),
        in_(in),
        timeout_ns_(timeout_ns) {}

  std::vector<std::string> run() {
    check();
    switch (kind_) {
      case BP_BROADCAST:
        return {broadcast()};
      case BP_SCATTER:
        return {scatter()};
      default:
        return gather();
    }
  }

 private:
  void check() const {
    if (kind_ != BP_BROADCAST && kind_ != BP_GATHER && kind_ != BP_ALL_GATHER && kind_ != BP_SCATTER) {
      fail(BP_INVALID, "objects cannot be exchanged by {}", op_name(kind_));
    }
    if (!group_.member()) fail(BP_INVALID, "this rank is not a member of group '{}'", group_.config().name);
    const bool gathers = kind_ == BP_GATHER || kind_ == BP_ALL_GATHER;
    const size_t needed = gathers ? 1 : !at_root_ ? 0 : kind_ == BP_SCATTER ? world_ : 1;
    if (needed > 0 && in_.size() != needed) {
      fail(BP_INVALID, "{} of objects needs {} objects on this rank, not {}", op_name(kind_), needed, in_.size());
    }
    uint64_t total = 0;
    for (const std::string_view object : in_) total += object.size();
    if (total > kMaxObjectBytes) fail(BP_RESOURCE, "{} bytes of objects are too many", total);
  }

  void perform(uint32_t kind, uint32_t dtype, const void* in, uint64_t in_count, void* out, uint64_t out_count,
               const uint64_t* in_counts = nullptr, const uint64_t* out_counts = nullptr) {
    bp_op op;
    bp_op_init(&op, kind);
    op.dtype = dtype;
    op.root = root_;
    op.timeout_ns = timeout_ns_;
    op.input = {const_cast<void*>(in), in_count, BP_HOST, 0};
    op.output = {out, out_count, BP_HOST, 0};
    op.in_counts = in_counts;
    op.out_counts = out_counts;
    group_.operations().run(op);
  }

  static void check_size(uint64_t size) {
    if (size > kMaxObjectBytes) fail(BP_INTERNAL, "another rank announces an object of {} bytes", size);
  }

  std::string broadcast() {
    uint64_t size = at_root_ ? in_[0].size() : 0;
    perform(BP_BROADCAST, BP_U64, nullptr, 0, &size, 1);
    check_size(size);
    std::string object = at_root_ ? std::string(in_[0]) : std::string(size, '\0');
    perform(BP_BROADCAST, BP_U8, nullptr, 0, object.data(), size);
    return object;
  }

  std::string scatter() {
    std::vector<uint64_t> sizes;
    std::string all;
    if (at_root_) {
      for (const std::string_view object : in_) {
        sizes.push_back(object.size());
        all += object;
      }
    }
    uint64_t size = 0;
    perform(BP_SCATTER, BP_U64, sizes.data(), sizes.size(), &size, 1);
    check_size(size);
    std::string object(size, '\0');
    perform(BP_SCATTERV, BP_U8, all.data(), all.size(), object.data(), size, at_root_ ? sizes.data() : nullptr);
    return object;
  }

  std::vector<std::string> gather() {
    const bool receives = kind_ == BP_ALL_GATHER || at_root_;
    const uint64_t size = in_[0].size();
    std::vector<uint64_t> sizes(receives ? world_ : 0);
    perform(kind_, BP_U64, &size, 1, sizes.data(), sizes.size());
    uint64_t total = 0;
    for (const uint64_t s : sizes) {
      check_size(s);
      total += s;
    }
    std::string all(total, '\0');
    perform(kind_ == BP_GATHER ? BP_GATHERV : BP_ALL_GATHERV, BP_U8, in_[0].data(), size, all.data(), total, nullptr,
            receives ? sizes.data() : nullptr);
    std::vector<std::string> objects;
    uint64_t next = 0;
    for (const uint64_t s : sizes) {
      objects.push_back(all.substr(next, s));
      next += s;
    }
    return objects;
  }

  Group& group_;
  const uint32_t kind_;
  const int32_t root_;
  const size_t world_;
  const bool at_root_;
  const std::vector<std::string_view>& in_;
  const int64_t timeout_ns_;
};

}  // namespace

std::vector<std::string> exchange_objects(Group& group, uint32_t kind, int32_t root,
                                          const std::vector<std::string_view>& in, int64_t timeout_ns) {
  return ObjectExchange(group, kind, root, in, timeout_ns).run();
}

namespace {

// The message before an object. The object's tag contains the sender's number of it, so that receives on several
// threads do not mix their messages.
struct Header {
  uint64_t size;
  uint64_t number;
};

// Differ from the tags of collectives (schedule_run.cpp): kinds of operations that do not exist.
uint64_t header_tag(uint32_t tag) { return BP_TAG_INTERNAL | UINT64_C(31) << 51 | tag; }
uint64_t body_tag(uint64_t number) { return BP_TAG_INTERNAL | UINT64_C(30) << 51 | number; }

bp_op message(uint32_t kind, int32_t peer, void* data, uint64_t size, Deadline deadline) {
  bp_op op;
  bp_op_init(&op, kind);
  op.dtype = BP_U8;
  op.peer = peer;
  op.timeout_ns = deadline.left_ns();
  (kind == BP_SEND ? op.input : op.output) = {data, size, BP_HOST, 0};
  return op;
}

Deadline deadline_for(const Group& group, int64_t timeout_ns) {
  return Deadline::after(timeout_or(timeout_ns, group.config().timeout_ns));
}

}  // namespace

void send_object(Group& group, std::string_view object, int32_t peer, uint32_t tag, int64_t timeout_ns) {
  if (object.size() > kMaxObjectBytes) fail(BP_RESOURCE, "an object of {} bytes is too large", object.size());
  const Deadline deadline = deadline_for(group, timeout_ns);
  Header header = {object.size(), group.operations().next_object()};
  group.operations().run_with_tag(message(BP_SEND, peer, &header, sizeof header, deadline), header_tag(tag));
  group.operations().run_with_tag(message(BP_SEND, peer, const_cast<char*>(object.data()), object.size(), deadline),
                                  body_tag(header.number));
}

ReceivedObject receive_object(Group& group, int32_t peer, uint32_t tag, int64_t timeout_ns) {
  const Deadline deadline = deadline_for(group, timeout_ns);
  Header header = {};
  bp_result result = {sizeof(bp_result), -1, 0, 0};
  bp_op first = message(BP_RECV, peer, &header, sizeof header, deadline);
  first.result = &result;
  group.operations().run_with_tag(first, header_tag(tag));
  if (result.bytes != sizeof header || header.size > kMaxObjectBytes) {
    fail(BP_INTERNAL, "rank {} announces an object of {} bytes", result.source, header.size);
  }
  ReceivedObject object = {std::string(header.size, '\0'), result.source};
  bp_op second = message(BP_RECV, result.source, object.bytes.data(), header.size, deadline);
  second.result = &result;
  group.operations().run_with_tag(second, body_tag(header.number));
  if (result.bytes != header.size) {
    fail(BP_INTERNAL, "rank {} sent {} bytes of an object of {}", object.source, result.bytes, header.size);
  }
  return object;
}

}  // namespace backplane::core
