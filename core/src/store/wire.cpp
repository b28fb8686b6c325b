// SPDX-License-Identifier: Apache-2.0
#include "store/wire.hpp"

namespace backplane::core {

std::string encode_key_offer(std::string_view public_key) {
  return Packer().raw(kMagic).u32(kSecureVersion).raw(public_key).frame();
}

std::string encode_key_reply(std::string_view public_key) {
  return Packer().raw(kMagic).u32(BP_OK).text("").raw(public_key).frame();
}

std::string encode(const Hello& hello) {
  Packer packer;
  packer.raw(kMagic).u32(hello.version).u32(static_cast<uint32_t>(hello.rank));
  packer.u32(static_cast<uint32_t>(hello.world_size)).text(hello.job_id);
  return packer.frame();
}

std::string encode(const Welcome& welcome) {
  Packer packer;
  packer.raw(kMagic).u32(static_cast<uint32_t>(welcome.status)).text(welcome.text);
  // Version 1 ends here; it reads refusals of any version.
  packer.u32(static_cast<uint32_t>(welcome.server_rank)).text(welcome.server_identity);
  packer.u64(static_cast<uint64_t>(welcome.heartbeat.interval_ns));
  packer.u64(static_cast<uint64_t>(welcome.heartbeat.limit_ns));
  return packer.frame();
}

std::string encode(const StoreRequest& request) {
  Packer packer;
  packer.u64(request.id).u8(static_cast<uint8_t>(request.operation)).u64(static_cast<uint64_t>(request.number));
  packer.u32(static_cast<uint32_t>(request.texts.size()));
  for (const auto& text : request.texts) packer.text(text);
  return packer.frame();
}

std::string encode_reply_head(uint64_t id, int32_t status, size_t payload_size) {
  Packer packer;
  packer.u64(id).u32(static_cast<uint32_t>(status));
  return packer.frame(payload_size);
}

std::string encode(const Push& push) {
  Packer payload;
  payload.u8(static_cast<uint8_t>(push.kind));
  if (push.kind == Push::Kind::kNotice) {
    payload.text(push.scope).u32(static_cast<uint32_t>(push.rank)).text(push.text);
  }
  return encode_reply_head(kPushId, BP_OK, payload.bytes().size()) + payload.bytes();
}

std::string encode_absences(const Absences& absences) {
  Packer packer;
  packer.u32(static_cast<uint32_t>(absences.size()));
  for (const auto& [rank, absence] : absences)
    packer.u32(static_cast<uint32_t>(rank)).u8(static_cast<uint8_t>(absence));
  return packer.bytes();
}

std::optional<std::string> decode_key_offer(std::string_view bytes) {
  Unpacker fields(bytes);
  if (fields.raw(kMagic.size()) != kMagic || fields.u32() != kSecureVersion) return std::nullopt;
  std::string key(fields.raw(kKeySize));
  if (!fields.complete()) return std::nullopt;
  return key;
}

std::optional<std::string> decode_key_reply(std::string_view bytes) {
  Unpacker fields(bytes);
  if (fields.raw(kMagic.size()) != kMagic || fields.u32() != BP_OK || !fields.text().empty()) return std::nullopt;
  std::string key(fields.raw(kKeySize));
  if (!fields.complete()) return std::nullopt;
  return key;
}

std::optional<Hello> decode_hello(std::string_view bytes) {
  Unpacker fields(bytes);
  if (fields.raw(kMagic.size()) != kMagic) return std::nullopt;
  Hello hello;
  hello.version = fields.u32();
  if (fields.good() && hello.version != kProtocolVersion) return hello;
  hello.rank = static_cast<int32_t>(fields.u32());
  hello.world_size = static_cast<int32_t>(fields.u32());
  hello.job_id = fields.text();
  if (!fields.complete() || hello.job_id.size() > kMaxJobIdSize) return std::nullopt;
  return hello;
}

std::optional<Welcome> decode_welcome(std::string_view bytes) {
  Unpacker fields(bytes);
  if (fields.raw(kMagic.size()) != kMagic) return std::nullopt;
  Welcome welcome;
  welcome.status = static_cast<int32_t>(fields.u32());
  welcome.text = fields.text();
  if (fields.good() && welcome.status != BP_OK) return welcome;  // of any version
  welcome.server_rank = static_cast<int32_t>(fields.u32());
  welcome.server_identity = fields.text();
  welcome.heartbeat.interval_ns = static_cast<int64_t>(fields.u64());
  welcome.heartbeat.limit_ns = static_cast<int64_t>(fields.u64());
  if (!fields.complete() || welcome.server_identity.size() > kMaxIdentitySize) return std::nullopt;
  if (!is_valid(welcome.heartbeat)) return std::nullopt;
  return welcome;
}

std::optional<StoreRequest> decode_request(std::string_view bytes) {
  Unpacker fields(bytes);
  StoreRequest request;
  request.id = fields.u64();
  request.operation = static_cast<RequestKind>(fields.u8());
  request.number = static_cast<int64_t>(fields.u64());
  const uint32_t count = fields.u32();
  if (!fields.good() || count > kMaxKeys) return std::nullopt;
  for (uint32_t i = 0; i < count && fields.good(); ++i) request.texts.emplace_back(fields.text());
  if (!fields.complete()) return std::nullopt;
  return request;
}

std::optional<Reply> decode_reply(std::string_view bytes) {
  Unpacker fields(bytes);
  Reply reply;
  reply.id = fields.u64();
  reply.status = static_cast<int32_t>(fields.u32());
  if (!fields.good()) return std::nullopt;
  reply.payload = fields.rest();
  return reply;
}

std::optional<Push> decode_push(std::string_view payload) {
  Unpacker fields(payload);
  Push push;
  push.kind = static_cast<Push::Kind>(fields.u8());
  if (push.kind == Push::Kind::kNotice) {
    push.scope = fields.text();
    push.rank = static_cast<int32_t>(fields.u32());
    push.text = fields.text();
    if (push.rank < 0 || push.scope.size() > kMaxScopeSize || push.text.size() > kMaxNoticeSize) return std::nullopt;
  } else if (push.kind != Push::Kind::kHeartbeat && push.kind != Push::Kind::kShutdown) {
    return std::nullopt;
  }
  if (!fields.complete()) return std::nullopt;
  return push;
}

std::optional<Absences> decode_absences(std::string_view payload) {
  constexpr size_t kEntrySize = 5;  // rank and absence
  Unpacker fields(payload);
  const uint32_t count = fields.u32();
  if (!fields.good() || payload.size() != 4 + kEntrySize * count) return std::nullopt;
  Absences absences;
  for (uint32_t i = 0; i < count; ++i) {
    const auto rank = static_cast<int32_t>(fields.u32());
    const auto absence = static_cast<Absence>(fields.u8());
    if (rank < 0 || (absence != Absence::kLost && absence != Absence::kLeft)) return std::nullopt;
    if (!absences.emplace(rank, absence).second) return std::nullopt;
  }
  return absences;
}

}  // namespace backplane::core
