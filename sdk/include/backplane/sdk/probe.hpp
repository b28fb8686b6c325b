// SPDX-License-Identifier: Apache-2.0
//
// "backplane.probe/1" with C++ types: messages that are taken before their receive buffer is known.
//
//     const void* extension(std::string_view id) override { return id == BP_EXT_PROBE ? table() : nullptr; }
//
// in a group that derives from ProbeTable or owns one. A backend built on Messenger returns messenger_.probe_table(). A
// backend built on Mailbox owns a MailboxProbe.
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

  // Takes the oldest message that a receive with this peer and tag would match, and writes source, size and tag to
  // `result`. NULL: there is none yet. Throws the Failure of such a receive. Any thread, does not block.
  virtual bp_message* probe(int32_t peer, uint64_t tag, bp_result& result) = 0;
  // Discards a message that was taken and not received. Its send is done. Any thread, does not block.
  virtual void drop(bp_message* message) noexcept = 0;

  // The value for the group's extension(). Valid as long as this object.
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

// Whether a receive of `wanted`, which may be BP_ANY_TAG, matches a message with this tag. User tags are below 2^32;
// others belong to the core and to the backend's own collectives.
constexpr bool matches_tag(uint64_t wanted, uint64_t tag) {
  return wanted == tag || (wanted == BP_ANY_TAG && tag >> 32 == 0);
}

// The failure of a receive whose probed message was cancelled by its sender: the receive cannot match another message.
inline Failure taken_back() { return {BP_CANCELLED, "the message that was probed was cancelled by its sender"}; }

}  // namespace backplane::sdk
