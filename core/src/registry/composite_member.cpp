// SPDX-License-Identifier: Apache-2.0
#include "registry/composite_member.hpp"

#include <algorithm>

#include "error.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr bp_capability message(uint32_t kind) {
  return {sizeof(bp_capability), kind, BP_BIT(BP_U8), 0, BP_BIT(BP_HOST)};
}
constexpr bp_capability kSend = message(BP_SEND);
constexpr bp_capability kRecv = message(BP_RECV);
constexpr const bp_capability* kMessages[] = {&kSend, &kRecv};

bool moves_bytes(const bp_backend& backend, uint32_t kind) {
  const auto* const end = backend.capabilities + backend.capability_count;
  return std::any_of(backend.capabilities, end, [kind](const bp_capability* each) {
    return each->op == kind && (each->dtypes & BP_BIT(BP_U8)) != 0 && (each->memory & BP_BIT(BP_HOST)) != 0;
  });
}

bool joins_ranks(const bp_backend& backend) {
  return (backend.kinds & BP_KIND_PROCESS_GROUP) != 0 && (backend.kinds & BP_KIND_LAYER) == 0;
}

void check_part(const Member& member) {
  if (!joins_ranks(*member.backend)) {
    fail(BP_INVALID,
         "{} is not a backend for process groups and cannot be part of a composite; name two such backends, "
         "as in shm+gloo",
         member.id);
  }
  if (!can_compose(*member.backend)) {
    fail(BP_UNSUPPORTED, "backend {} does not send and receive host memory and cannot be part of a composite",
         member.id);
  }
}

uint32_t fewer_bits(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

bool can_compose(const bp_backend& backend) {
  return joins_ranks(backend) && moves_bytes(backend, BP_SEND) && moves_bytes(backend, BP_RECV);
}

CompositeMember::CompositeMember(const Member& inside, const Member& between)
    : summary("the first among the ranks of a host, the second between hosts") {
  check_part(inside);
  check_part(between);
  constexpr uint32_t kCommon = BP_BACKEND_TAGS | BP_BACKEND_ANY_SOURCE | BP_BACKEND_ANY_TAG | BP_BACKEND_AUTONOMOUS |
                               BP_BACKEND_THREADS | BP_BACKEND_AUTHENTICATES;
  const bp_backend& first = *inside.backend;
  const bp_backend& second = *between.backend;
  member.id = inside.id + "+" + between.id;
  member.name = upper(member.id);
  member.origin = "composed";
  member.backend = &backend;
  member.parts = {&inside, &between};
  backend.struct_size = sizeof(bp_backend);
  backend.kinds = BP_KIND_PROCESS_GROUP;
  backend.flags = (first.flags & second.flags & kCommon) | BP_BACKEND_BOUNDED;  // its parts are isolated if necessary
  backend.id = member.id.c_str();
  backend.version = first.version;
  backend.summary = summary.c_str();
  backend.capabilities = kMessages;
  backend.capability_count = static_cast<uint32_t>(std::size(kMessages));
  backend.tag_bits = fewer_bits(first.tag_bits, second.tag_bits);
}

}  // namespace backplane::core
