// SPDX-License-Identifier: Apache-2.0
//
// "backplane.probe/1" with C++ types: messages that are taken before their receive buffer is known.
//
//     const void* extension(std::string_view id) override { return id == BP_EXT_PROBE ? table() : nullptr; }
//
// of a group that derives from ProbeTable, or has one. A backend built on Messenger answers messenger_.probe_table();
// one built on Mailbox has a MailboxProbe.
#pragma once

#include "backplane/abi/ext/probe.h"
#include "failure.hpp"

namespace backplane::sdk {

class ProbeTable {
 public:
  ProbeTable() : table_{sizeof(bp_probe_api), 0, this, probe_any, drop_any} {}
  virtual ~ProbeTable() = default;
  ProbeTable(const ProbeTable&) = delete;
  ProbeTable& operator=(const ProbeTable&) = delete;

  // Takes the oldest message that a receive with this peer and tag would get, and writes source, size and tag to
  // `result`. NULL: there is none yet. Throws what such a receive would fail with. From any thread; does not block.
  virtual bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) = 0;
  // Drops a message that was taken and not received; its send is done. From any thread; does not block.
  virtual void drop(bp_message* message) noexcept = 0;

  // What the group's extension() answers. Valid as long as this object.
  const bp_probe_api* table() const { return &table_; }

 private:
  static int32_t probe_any(void* ctx, int32_t peer, uint64_t tag, bp_message** message, bp_result* result,
                           bp_error* err) noexcept {
    return guarded(err, [=] {
      *message = static_cast<ProbeTable*>(ctx)->probe(peer, tag, *result);
      return *message == nullptr ? BP_AGAIN : BP_OK;
    });
  }
  static void drop_any(void* ctx, bp_message* message) noexcept { static_cast<ProbeTable*>(ctx)->drop(message); }

  const bp_probe_api table_;
};

// Does a receive of `wanted`, which may be BP_ANY_TAG, match a message with this tag? Tags of users are below 2^32:
// others belong to the core, and to collectives of the backend's own.
constexpr bool matches_tag(uint64_t wanted, uint64_t tag) {
  return wanted == tag || (wanted == BP_ANY_TAG && tag >> 32 == 0);
}

// The end of a receive of a message that was probed, and that its sender has cancelled since: it cannot wait for
// another one.
inline Failure taken_back() { return {BP_CANCELLED, "the message that was probed was cancelled by its sender"}; }

}  // namespace backplane::sdk
