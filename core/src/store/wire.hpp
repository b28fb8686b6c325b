// SPDX-License-Identifier: Apache-2.0
//
// What a TCP store's client and server say to each other. Everything is a frame: a size (4 bytes, not counting itself),
// then that many bytes. Numbers are little-endian; a text is its size (4 bytes) and its bytes.
//
//   client -> server, first    Hello:   magic, version, rank, world size, job id
//   server -> client, first    Welcome: magic, status, text; any status but BP_OK ends the connection; then whose
//                                       process serves the store, and how often to give a sign of life
//   client -> server           StoreRequest: id, operation, number, texts
//   server -> client           Reply:   id, status, payload; in any order, so that a waiting get delays nobody
//   server -> client           Push:    a Reply of id 0, which answers no request: a sign of life, news of a rank that
//                                       is lost, or the server's goodbye
//
// With a job secret two frames come first, and every other one is sealed (handshake.hpp; its size counts the seal):
//
//   client -> server           KeyOffer:  magic, version with kSecureMark, public key
//   server -> client           KeyAnswer: magic, status, text, public key; a Welcome if it is no BP_OK
//
// Whoever has no secret, or another one, is told so in a Welcome that is not sealed, and that says nothing else.
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
inline constexpr size_t kMaxHelloSize = 2048;  // what a stranger may make the server keep
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
  std::string text;
  int32_t server_rank = -1;     // in whose process the server lives; -1: in none of the job's (a launcher)
  std::string server_identity;  // "host, pid 17"
  Heartbeat heartbeat = {};
};

// What the texts and the number of a request are.
enum class Operation : uint8_t {
  kSet = 1,         // key, value
  kGet = 2,         // key; payload: value; waits
  kAdd = 3,         // key; number: delta; payload: sum in decimal
  kWait = 4,        // keys; waits
  kCheck = 5,       // keys; payload: "1" or "0"
  kCompareSet = 6,  // key, expected, desired; payload: value
  kRemove = 7,      // key; payload: "1" or "0"
  kNumKeys = 8,     // payload: decimal
  kCancel = 9,      // number: id of a waiting request, which is answered with BP_TIMEOUT and the keys that are missing;
                    // no answer of its own
  kEnroll = 10,     // scope, identity; number: rank, -1 to be told of losses only; payload: "1", or "0" if the rank is
                    // held by another client (whose death is the one that counts)
  kWithdraw = 11,   // scope; number: rank, -1 if it was not held: this rank departs from the scope in peace
  kGoodbye = 12,    // withdraws all of this client's ranks
  kFates = 13,      // scope; payload: who is lost or has departed
  kHeartbeat = 14,  // no answer but a push of the same name
};

struct StoreRequest {
  uint64_t id = 0;
  Operation operation = Operation::kNumKeys;
  int64_t number = 0;
  std::vector<std::string> texts;
};

struct Reply {
  uint64_t id = 0;
  int32_t status = BP_OK;
  std::string payload;
};

// What the server says unasked.
struct Push {
  enum class Kind : uint8_t { kHeartbeat = 1, kNotice = 2, kFarewell = 3 };

  Kind kind = Kind::kHeartbeat;
  // Of a notice:
  std::string scope;
  int32_t rank = -1;
  std::string text;
};

std::string encode_key_offer(std::string_view public_key);
std::string encode_key_answer(std::string_view public_key);
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const StoreRequest& request);
// A reply whose payload of that size follows.
std::string encode_reply_head(uint64_t id, int32_t status, size_t payload_size);
std::string encode(const Push& push);  // with its reply head
std::string encode_fates(const Fates& fates);

// The public key of a KeyOffer of this version, or a KeyAnswer that says yes. Nothing if the bytes are no such thing.
std::optional<std::string> decode_key_offer(std::string_view bytes);
std::optional<std::string> decode_key_answer(std::string_view bytes);
// Nothing if the bytes of a frame are not such a thing. A Hello of another version has only its version.
std::optional<Hello> decode_hello(std::string_view bytes);
std::optional<Welcome> decode_welcome(std::string_view bytes);
std::optional<StoreRequest> decode_request(std::string_view bytes);
std::optional<Reply> decode_reply(std::string_view bytes);
// From the payloads of replies.
std::optional<Push> decode_push(std::string_view payload);
std::optional<Fates> decode_fates(std::string_view payload);

}  // namespace backplane::core
