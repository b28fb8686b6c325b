// SPDX-License-Identifier: Apache-2.0
#include "store/wire.hpp"

namespace backplane::core {

Packer& Packer::u8(uint8_t value) {
  bytes_ += static_cast<char>(value);
  return *this;
}

Packer& Packer::u32(uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) u8(static_cast<uint8_t>(value >> shift));
  return *this;
}

Packer& Packer::u64(uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) u8(static_cast<uint8_t>(value >> shift));
  return *this;
}

Packer& Packer::text(std::string_view value) { return u32(static_cast<uint32_t>(value.size())).raw(value); }

Packer& Packer::raw(std::string_view value) {
  bytes_ += value;
  return *this;
}

std::string Packer::frame(size_t more) const {
  Packer framed;
  framed.u32(static_cast<uint32_t>(bytes_.size() + more)).raw(bytes_);
  return framed.bytes_;
}

std::string_view Unpacker::raw(size_t size) {
  if (size > bytes_.size()) {
    good_ = false;
    bytes_ = {};
    return {};
  }
  const std::string_view taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return taken;
}

std::string_view Unpacker::rest() { return raw(bytes_.size()); }

uint8_t Unpacker::u8() {
  const auto taken = raw(1);
  return taken.empty() ? uint8_t{0} : static_cast<uint8_t>(taken[0]);
}

uint32_t Unpacker::u32() {
  uint32_t value = 0;
  for (int shift = 0; shift < 32; shift += 8) value |= uint32_t{u8()} << shift;
  return value;
}

uint64_t Unpacker::u64() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) value |= uint64_t{u8()} << shift;
  return value;
}

std::string_view Unpacker::text() { return raw(u32()); }

std::string encode(const Hello& hello) {
  Packer packer;
  packer.raw(kMagic).u32(hello.version).u32(static_cast<uint32_t>(hello.rank));
  packer.u32(static_cast<uint32_t>(hello.world_size)).text(hello.job_id);
  return packer.frame();
}

std::string encode(const Welcome& welcome) {
  Packer packer;
  packer.raw(kMagic).u32(static_cast<uint32_t>(welcome.status)).text(welcome.text);
  return packer.frame();
}

std::string encode(const Request& request) {
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

std::optional<Hello> decode_hello(std::string_view bytes) {
  Unpacker fields(bytes);
  if (fields.raw(kMagic.size()) != kMagic) return std::nullopt;
  Hello hello;
  hello.version = fields.u32();
  if (fields.good() && hello.version != kProtocolVersion) return hello;
  hello.rank = static_cast<int32_t>(fields.u32());
  hello.world_size = static_cast<int32_t>(fields.u32());
  hello.job_id = fields.text();
  if (!fields.complete()) return std::nullopt;
  return hello;
}

std::optional<Welcome> decode_welcome(std::string_view bytes) {
  Unpacker fields(bytes);
  if (fields.raw(kMagic.size()) != kMagic) return std::nullopt;
  Welcome welcome;
  welcome.status = static_cast<int32_t>(fields.u32());
  welcome.text = fields.text();
  if (!fields.good()) return std::nullopt;
  return welcome;
}

std::optional<Request> decode_request(std::string_view bytes) {
  Unpacker fields(bytes);
  Request request;
  request.id = fields.u64();
  request.operation = static_cast<Operation>(fields.u8());
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

size_t decode_size(const char* bytes) { return Unpacker(std::string_view(bytes, kSizeBytes)).u32(); }

}  // namespace backplane::core
