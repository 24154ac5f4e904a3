"""Chat templates as published models have them, and others that keep, collect or look ahead, so that care is needed."""

from tests.trainer.chats import CHATML, LLAMA2, MARKED

SAID = "{{ '<|' + m.role[0] + '|>' + m.content + eos_token }}"
ASKS = "{% if add_generation_prompt %}{{ '<|a|>' }}{% endif %}"

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = \
'<|start_header_id|>' + \
message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}\
{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{{- tools | tojson }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}\
{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

LINEAR = {
    "chatml": CHATML,
    "llama-3": LLAMA3,
    "llama-2": LLAMA2,
    "qwen": QWEN,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "by index": "{% for m in messages %}{{ '<|' ~ m.role[0] ~ '|>' ~ loop.index ~ m.content ~ eos_token }}{% endfor %}"
    + ASKS,
    "sees the message before": "{% for m in messages %}{{ (loop.previtem.role if loop.previtem else '-') + '>' if "
    "m.role == 'user' else '<|a|>' }}{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "always ends": "{% for m in messages %}SAYS{% endfor %}{{ '<|a|>' if add_generation_prompt else '' }}",
    "two loops": "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{% for m in messages %}SAYS"
    "{% endfor %}" + ASKS,
}
"""The time that these take grows with a conversation's length, but for `two loops`, which looks at all of it first."""

OTHERS = {
    "marked": MARKED,
    "looks ahead": "{% for m in messages %}SAYS"
    "{% if loop.last and add_generation_prompt %}{{ '<|a|>' }}{% endif %}{% endfor %}",
    "looks ahead in one turn": "{% set ms = messages[1:] if messages[0].role == 'system' else messages %}{% for m in "
    "ms %}{% if '1' in m.content and ms[loop.index0 + 1] is defined %}{% endif %}"
    "{{ '[I]' + m.content + '[/I]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "looks ahead by a slice": "{% for m in messages %}{% if '1' in m.content %}{% set next = messages[loop.index:] | "
    "first %}{% endif %}{{ '[I]' + m.content + '[/I]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "looks ahead by the loop": "{% for m in messages %}{% if '1' in m.content and loop.nextitem %}{% endif %}"
    "{{ '[I]' + m.content + '[/I]' if m.role == 'user' else m.content + eos_token }}{% endfor %}",
    "numbers backwards": "{% for m in messages %}{{ loop.revindex ~ m.content ~ eos_token }}{% endfor %}" + ASKS,
    "counts": "{{ messages | length }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "says how many at the end": "{% for m in messages %}SAYS{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|a|>' }}{% else %}{{ messages | length }}{% endif %}",
    "keeps the last": "{% set ns = namespace(last='') %}{% for m in messages %}SAYS{% set ns.last = m.content %}"
    "{% endfor %}{% if not add_generation_prompt %}{{ ns.last }}{% else %}{{ '<|a|>' }}"
    "{% endif %}",
    "keeps the last, but does not say it": "{% set ns = namespace(last='') %}{% for m in messages %}SAYS"
    "{% set ns.last = m.content %}{% endfor %}" + ASKS,
    "joins": "{% set sep = joiner('&') %}{% for m in messages %}{{ sep() + '<|' + m.role[0] + '|>' + m.content + "
    "eos_token }}{% endfor %}" + ASKS,
    "turns": "{% set turn = cycler('x', 'y') %}{% for m in messages %}{{ turn.next() + m.content + eos_token }}{% "
    "endfor %}{{ turn.current if add_generation_prompt else '' }}",
    "leaves out former answers": "{% for m in messages %}{{ '<|' + m.role[0] + '|>' }}{{ m.content if m.role == 'user' "
    "or loop.nextitem is not defined else '' }}{{ eos_token }}{% endfor %}" + ASKS,
    "collects": "{% set all %}{% for m in messages %}SAYS{% endfor %}{% endset %}{{ all | trim }}" + ASKS,
    "filters": "{% filter trim %}{% for m in messages %}SAYS{% endfor %}{% endfilter %}" + ASKS,
    "macro": "{% macro say(all) %}{% for m in all %}SAYS{% endfor %}{% endmacro %}{{ say(messages) }}" + ASKS,
    "consumes": "{% set said = messages | map(attribute='content') %}{% for m in messages %}{{ '<|' + m.role[0] + '|>' "
    "+ (said | first) + eos_token }}{% endfor %}" + ASKS,
    "json": "{{ messages | tojson }}" + ASKS,
    "prints all": "{{ messages }}" + ASKS,
    "adds": "{% for m in messages + [] %}SAYS{% endfor %}" + ASKS,
    "last": "{% for m in messages %}SAYS{% endfor %}{{ '<|a|>' if messages[-1].role == 'user' else '' }}",
    "stops": "{% for m in messages %}SAYS{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}" + ASKS,
    "asks within": "{% for m in messages %}{% if m.role == 'user' and add_generation_prompt %}{{ '?' }}{% endif %}SAYS"
    "{% endfor %}" + ASKS,
    "unasked header": "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}",
    "refuses the third": "{% for m in messages %}{{ raise_exception('no') if loop.index == 3 else '' }}"
    "{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "reversed": "{% for m in messages | reverse %}{{ m.content + eos_token }}{% endfor %}" + ASKS,
    "in pairs": "{% for pair in messages | batch(2) %}{% for m in pair %}SAYS{% endfor %}{% endfor %}" + ASKS,
    "dict": "{% set names = dict(user='u', assistant='a', system='s') %}{% for m in messages %}{{ names[m.role] + "
    "m.content + eos_token }}{% endfor %}{{ 'a' if add_generation_prompt else '' }}",
}

for templates in (LINEAR, OTHERS):
    templates.update({name: source.replace("SAYS", SAID) for name, source in templates.items()})
