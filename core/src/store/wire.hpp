// SPDX-License-Identifier: Apache-2.0
//
// What a TCP store's client and server say to each other. Everything is a frame: a size (4 bytes, not counting itself),
// then that many bytes. Numbers are little-endian; a text is its size (4 bytes) and its bytes.
//
//   client -> server, first    Hello:   magic, version, rank, world size, job id
//   server -> client, first    Welcome: magic, status, text; any status but BP_OK ends the connection
//   client -> server           Request: id, operation, number, texts
//   server -> client           Reply:   id, status, payload; in any order, so that a waiting get delays nobody
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.hpp"

namespace backplane::core {

inline constexpr std::string_view kMagic = "bp-store";
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kSizeBytes = 4;        // of the size before each frame
inline constexpr size_t kMaxHelloSize = 2048;  // what a stranger may make the server keep
inline constexpr size_t kMaxJobIdSize = 1024;
inline constexpr size_t kMaxWelcomeSize = 8192;
// The largest value or list of keys, its key, and room for the rest.
inline constexpr size_t kMaxFrameSize = kMaxValueSize + kMaxKeySize + 8 * kMaxKeys;

// Appends fields to a byte string.
class Packer {
 public:
  Packer& u8(uint8_t value);
  Packer& u32(uint32_t value);
  Packer& u64(uint64_t value);
  Packer& text(std::string_view value);
  Packer& raw(std::string_view value);
  const std::string& bytes() const { return bytes_; }
  // What was packed with its size in front; `more` bytes belong to the frame but are sent after it.
  std::string frame(size_t more = 0) const;

 private:
  std::string bytes_;
};

// Takes fields out again. Never reads beyond the end: what is not there is 0 or empty, and complete() is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  uint8_t u8();
  uint32_t u32();
  uint64_t u64();
  std::string_view text();
  std::string_view raw(size_t size);
  std::string_view rest();
  // Everything asked for was there and nothing is left.
  bool complete() const { return good_ && bytes_.empty(); }
  bool good() const { return good_; }

 private:
  std::string_view bytes_;
  bool good_ = true;
};

struct Hello {
  uint32_t version = kProtocolVersion;
  int32_t rank = -1;
  int32_t world_size = -1;
  std::string job_id;
};

struct Welcome {
  int32_t status = BP_OK;
  std::string text;
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
};

struct Request {
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

std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Request& request);
// A reply whose payload of that size follows.
std::string encode_reply_head(uint64_t id, int32_t status, size_t payload_size);

// Nothing if the bytes of a frame are not such a thing. A Hello of another version has only its version.
std::optional<Hello> decode_hello(std::string_view bytes);
std::optional<Welcome> decode_welcome(std::string_view bytes);
std::optional<Request> decode_request(std::string_view bytes);
std::optional<Reply> decode_reply(std::string_view bytes);
// The size in the first 4 bytes.
size_t decode_size(const char* bytes);

}  // namespace backplane::core
