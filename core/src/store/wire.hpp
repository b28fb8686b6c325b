// SPDX-License-Identifier: Apache-2.0
//
// The protocol between a TCP store's client and server. All messages are frames in the encoding of packer.hpp.
//
//   client -> server, first    Hello:   magic, version, rank, world size, job id
//   server -> client, first    Welcome: magic, status, text, the server's rank and identity, heartbeat; any status but
//                                       BP_OK ends the connection
//   client -> server           StoreRequest: id, operation, number, texts
//   server -> client           Reply:   id, status, payload; in any order
//   server -> client           Push:    a Reply of id 0 that belongs to no request: a heartbeat, the notice of a lost
//                                       rank, or the shutdown of the server
//
// With a job secret two frames come first, and every other one is sealed (handshake.hpp; its size counts the seal):
//
//   client -> server           KeyOffer:  magic, version with kSecureMark, public key
//   server -> client           KeyReply:  magic, status, text, public key; a Welcome if the status is not BP_OK
//
// A client without the secret, or with another one, is refused by an unsealed Welcome without further information.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "liveness/membership.hpp"
#include "packer.hpp"
#include "security/secret.hpp"
#include "store/store.hpp"

namespace backplane::core {

inline constexpr std::string_view kMagic = "bp-store";
inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr uint32_t kSecureMark = UINT32_C(1) << 31;  // in the version of a client that has a secret
inline constexpr uint32_t kSecureVersion = kProtocolVersion | kSecureMark;
inline constexpr size_t kMaxHelloSize = 2048;  // limit for clients that are not authenticated
inline constexpr size_t kMaxJobIdSize = 1024;
inline constexpr size_t kMaxWelcomeSize = 8192;
inline constexpr uint64_t kPushId = 0;  // no request has it
// The largest value or list of keys, its key, and room for the rest.
inline constexpr size_t kMaxFrameSize = kMaxValueSize + kMaxKeySize + 8 * kMaxKeys;

struct Hello {
  uint32_t version = kProtocolVersion;
  int32_t rank = -1;
  int32_t world_size = -1;
  std::string job_id;
};

struct Welcome {
  int32_t status = BP_OK;
  std::string text = {};
  int32_t server_rank = -1;          // the rank whose process runs the server; -1: no rank (a launcher)
  std::string server_identity = {};  // "host, pid 17"
  Heartbeat heartbeat = {};
};

// The operations, with the meaning of a request's texts and number.
enum class RequestKind : uint8_t {
  kSet = 1,         // key, value
  kGet = 2,         // key; payload: value; waits
  kAdd = 3,         // key; number: delta; payload: sum in decimal
  kWait = 4,        // keys; waits
  kCheck = 5,       // keys; payload: "1" or "0"
  kCompareSet = 6,  // key, expected, desired; payload: value
  kRemove = 7,      // key; payload: "1" or "0"
  kNumKeys = 8,     // payload: decimal
  kCancel = 9,      // number: id of a waiting request, whose reply is BP_TIMEOUT and the missing keys; no reply of its
                    // own
  kEnroll = 10,  // scope, identity; number: rank, -1 for notices only; payload: "1", or "0" if another client holds the
                 // rank
  kWithdraw = 11,      // scope; number: rank, -1 if it was not held: the rank leaves the scope
  kLeave = 12,         // all ranks of this client leave
  kAbsences = 13,      // scope; payload: the ranks that are lost or have left
  kHeartbeat = 14,     // no reply but a push of the same kind
  kReportEnd = 15,     // scope, identity, reason; number: rank, which is lost unless it has enrolled
  kRemovePrefix = 16,  // prefix; removes all keys that begin with it
};

struct StoreRequest {
  uint64_t id = 0;
  RequestKind operation = RequestKind::kNumKeys;
  int64_t number = 0;
  std::vector<std::string> texts;
};

struct Reply {
  uint64_t id = 0;
  int32_t status = BP_OK;
  std::string payload;
};

// A message of the server that is not a reply.
struct Push {
  enum class Kind : uint8_t { kHeartbeat = 1, kNotice = 2, kShutdown = 3 };

  Kind kind = Kind::kHeartbeat;
  // The fields of a notice.
  std::string scope;
  int32_t rank = -1;
  std::string text;
};

std::string encode_key_offer(std::string_view public_key);
std::string encode_key_reply(std::string_view public_key);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const StoreRequest& request);
// The head of a reply; a payload of that size follows.
std::string encode_reply_head(uint64_t id, int32_t status, size_t payload_size);
std::string encode(const Push& push);  // with its reply head
std::string encode_absences(const Absences& absences);

// The public key of a KeyOffer of this version, or of a KeyReply that accepts. Nothing if the bytes are malformed.
std::optional<std::string> decode_key_offer(std::string_view bytes);
std::optional<std::string> decode_key_reply(std::string_view bytes);
// Nothing if the bytes of a frame are malformed. A Hello of another version has only its version.
std::optional<Hello> decode_hello(std::string_view bytes);
std::optional<Welcome> decode_welcome(std::string_view bytes);
std::optional<StoreRequest> decode_request(std::string_view bytes);
std::optional<Reply> decode_reply(std::string_view bytes);
// Decode the payloads of replies.
std::optional<Push> decode_push(std::string_view payload);
std::optional<Absences> decode_absences(std::string_view payload);

}  // namespace backplane::core
